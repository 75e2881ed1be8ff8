"""By which keys the clients of a sum know each other, as far as the server is concerned.

In a deployment each owner says its SuperNode's public key and a digest of the keys that it has
pinned. The server relays, and clients believe their own files alone: a wrong word here can only
keep a sum from being made. Simulated clients have keys that follow from the run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec

from fedsofim.federation.members import Member
from fedsofim.federation.terms import Terms
from fedsofim.secagg.primitives import PublicKey, load_public, simulated_key

# Signatures of one client that are known to be good; those of the last rounds are enough.
REMEMBERED = 16


class Identities(NamedTuple):
    """Who can take part in a sum.

    Attributes:
        keys: their public keys, by number.
        peers: the digest of all keys that they have pinned.
    """

    keys: Mapping[int, PublicKey]
    peers: str = ""

    @property
    def clients(self) -> frozenset[int]:
        """Their numbers."""
        return frozenset(self.keys)

    def terms(self, terms: Terms) -> Terms:
        """The terms of a run, with the keys that are part of them."""
        assert terms.sharing is not None
        return terms._replace(sharing=replace(terms.sharing, roster=self.peers))


class _Remembering:
    """A simulated client's public key, which checks a signature once for all others in a process.

    On its own machine each client would check it once; here many clients share one process.
    """

    def __init__(self, key: ec.EllipticCurvePublicKey) -> None:
        self.key, self.good = key, set[tuple[bytes, bytes]]()

    def verify(self, signature: bytes, message: bytes, how: ec.ECDSA) -> None:
        """Raise what the key raises, unless this very signature was found good before."""
        if (signature, message) in self.good:
            return
        self.key.verify(signature, message, how)
        self.good = self.good if len(self.good) < REMEMBERED else set()
        self.good.add((signature, message))


@lru_cache(maxsize=4)
def simulated(run: str, clients: int) -> Identities:
    """The clients of a simulation."""
    keys: dict[int, Any] = {
        i: _Remembering(simulated_key(run, i).public_key()) for i in range(clients)
    }
    return Identities(keys)


def told(members: Iterable[Member]) -> Identities:
    """The owners that have pinned the same keys as most others."""
    owners = [member for member in members if member.owner and member.key]
    most = Counter(member.peers for member in owners).most_common(1)
    peers = most[0][0] if most else ""
    keys = {m.client: _public(m.key) for m in owners if m.peers == peers}
    return Identities({i: key for i, key in keys.items() if key is not None}, peers)


def _public(text: str) -> PublicKey | None:
    try:
        return load_public(text.encode())
    except Exception:  # whatever a stranger calls its key
        return None
