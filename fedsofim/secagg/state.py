"""What a client knows before a session, and what it remembers during it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedsofim.core.errors import require
from fedsofim.secagg import primitives as crypto
from fedsofim.secagg import wire
from fedsofim.secagg.primitives import KEY, SEED, PrivateKey, PublicKey
from fedsofim.secagg.session import Policy, Session
from fedsofim.secagg.stages import Stage, stage_of

HELD = 1 + 2 * SEED  # whether a neighbour's shares came, and both


def pinned(texts: Mapping[int, bytes]) -> dict[int, PublicKey]:
    """All clients' public keys, from lines of OpenSSH; nobody may be two.

    The server says which number it speaks to, but each client keeps to its own number and pins
    the keys of all others: whoever had two numbers would count as two honest clients.
    """
    keys = {number: crypto.load_public(text) for number, text in texts.items()}
    owners: dict[bytes, int] = {}
    for number, key in keys.items():
        other = owners.setdefault(crypto.public_name(key), number)
        require(other == number, f"clients {other} and {number} have the same key")
    return keys


class Member(NamedTuple):
    """What a client knows before a session begins; none of it comes from the server.

    Attributes:
        number: its own.
        key: its long-term key.
        peers: the long-term public keys of all clients, its own too, as it has pinned them.
        policy: what it insists on.
        session: the one that it is willing to take part in, from the terms as it knows them.
        agree: what its private key and another's public one have in common, if anything.
    """

    number: int
    key: PrivateKey
    peers: Mapping[int, PublicKey]
    policy: Policy
    session: Session
    agree: Callable[[X25519PrivateKey, bytes], bytes | None] = crypto.agree


class State(NamedTuple):
    """What a client remembers of a session; as bytes, since an owner keeps it on disk.

    Attributes:
        session: encoded.
        secrets: all that `Secrets` are made of.
        answers: a digest of the request and the answer, of each stage that was answered.
        root: of the session, its roster and all keys.
        roster: who takes part.
        masks: the neighbours' public keys for masks.
        seals: the keys of the envelopes that they send.
        sealed: the keys of the envelopes to them.
        shared: who has shared, as a bitmap of the roster.
        held: for each neighbour whether its shares came, and both.
        survivors: the list that was signed, as a bitmap of the roster.
    """

    session: bytes = b""
    secrets: bytes = b""
    answers: bytes = b""
    root: bytes = b""
    roster: bytes = b""
    masks: bytes = b""
    seals: bytes = b""
    sealed: bytes = b""
    shared: bytes = b""
    held: bytes = b""
    survivors: bytes = b""

    def without_secrets(self) -> "State":
        """What is kept when nothing more will be asked: the answers, to give them again."""
        return State(session=self.session, answers=self.answers)


def answered(state: bytes) -> frozenset[Stage]:
    """The stages that a state has an answer to."""
    known = State(*wire.split(state, len(State._fields))) if state else State()
    return frozenset(stage_of(given) for given in wire.split(known.answers)[1::2])


class Secrets(NamedTuple):
    """What a client draws for one session; without recovery there is the first alone.

    Attributes:
        session: whose.
        of_masks: the seed of the private key for masks.
        seed: of the own mask.
        of_seals: the private key for envelopes.
    """

    session: Session
    of_masks: bytes
    seed: bytes
    of_seals: bytes

    @property
    def masking(self) -> X25519PrivateKey:
        """The private key for masks."""
        return crypto.private_key(self.of_masks, self.session.name)

    @property
    def sealing(self) -> X25519PrivateKey:
        """The private key for envelopes."""
        return X25519PrivateKey.from_private_bytes(self.of_seals)


def new_secrets(session: Session) -> bytes:
    """Secrets for one session."""
    return crypto.fresh(2 * SEED + KEY if session.recover else SEED)


def secrets_of(secrets: bytes, session: Session) -> Secrets:
    """The secrets that were drawn for a session."""
    return Secrets(session, secrets[:SEED], secrets[SEED : 2 * SEED], secrets[2 * SEED :])
