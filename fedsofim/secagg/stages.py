"""The stages of a session, and what both sides compute from what was said in them.

| stage | the server shows | a client answers |
|---|---|---|
| ADVERT | the session | two public keys, a commitment to its seed, signed with its long-term key |
| SHARE | who takes part, and the neighbours' keys | shares of its two secrets, sealed |
| MASK | who has shared, and what is sealed for it | its vector under all masks, confirmations |
| SIGN | who sent a vector | its signature of that list |
| UNMASK | signatures, confirmations for it | its seed, and one share of each neighbour |

Without recovery there are two: ADVERT, with one key alone, for masks; and MASK, in which the server
shows what it does in SHARE.

Every request but the first carries the session's name. From SHARE on all keys, envelopes and
signatures depend on the `root`, a digest of the session, the roster and everybody's keys: to
clients that were shown different rosters, each other's messages are noise.
"""

from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from fedsofim.secagg import primitives as crypto
from fedsofim.secagg.errors import Reason, trust
from fedsofim.secagg.graph import Graph, draw
from fedsofim.secagg.primitives import KEY, derive
from fedsofim.secagg.session import Session
from fedsofim.secagg.wire import digest, integers, pieces, read_integers, split


class Stage(IntEnum):
    """In the order in which they come."""

    ADVERT = 1
    SHARE = 2
    MASK = 3
    SIGN = 4
    UNMASK = 5


ALL = tuple(Stage)
WITHOUT_RECOVERY = (Stage.ADVERT, Stage.MASK)
_BY_BYTE = {bytes([stage]): stage for stage in Stage}
# A client's long-term key serves others, too, such as Flower: nothing they sign begins like this.
SIGNED = b"fedsofim secure aggregation\0"


def stage_of(message: bytes) -> Stage:
    """The stage that a request or an answer belongs to."""
    trust(message[:1] in _BY_BYTE, Reason.MALFORMED, "no such stage")
    return _BY_BYTE[message[:1]]


class Advert(NamedTuple):
    """What a client announces of itself.

    Attributes:
        masks: its public key for masks.
        seals: that for envelopes; empty without recovery.
        commitment: to the seed of its own mask; empty without recovery.
        message: what it must have signed.
        signature: of that.
        digest: a name for all of it.
    """

    masks: bytes
    seals: bytes
    commitment: bytes
    message: bytes
    signature: bytes
    digest: bytes


# All neighbours of a client read the same, and simulated clients share a process.
@lru_cache(maxsize=1024)
def read_advert(advert: bytes, session: Session, number: int) -> Advert:
    """The advert of a client; whether it is signed is to be seen."""
    public, signature = split(advert, 2)
    keys = pieces(public, KEY, 3) if session.recover else [*pieces(public, KEY, 1), b"", b""]
    message = advert_message(session.name, number, public)
    return Advert(keys[0], keys[1], keys[2], message, signature, advert_digest(advert))


def advert_message(session: bytes, number: int, public: bytes) -> bytes:
    """What a client signs about its keys, in the session of this name."""
    return SIGNED + digest("advert", session, integers([number]), public)


class Roster(NamedTuple):
    """Who takes part.

    Attributes:
        root: what all agree on who take part in the same session with the same others.
        graph: who is whose neighbour.
        adverts: a digest of each client's advert.
    """

    root: bytes
    graph: Graph
    adverts: dict[int, bytes]


@lru_cache(maxsize=16)
def read_roster(session: Session, numbers: bytes, digests: bytes) -> Roster:
    """The clients of these numbers, which must be sorted, and what follows from their adverts."""
    roster = read_integers(numbers)
    trust(all(a < b for a, b in pairwise(roster)), Reason.ROSTER)
    adverts = dict(zip(roster, pieces(digests, KEY, len(roster)), strict=True))
    root = digest("root", session.name, numbers, digests)
    return Roster(root, draw(root, roster, session.window), adverts)


def advert_digest(advert: bytes) -> bytes:
    """A name for an advert."""
    return digest("keys", advert)


def survivors_message(root: bytes, shared: bytes, survivors: bytes) -> bytes:
    """What a client signs about those who are left."""
    return SIGNED + digest("survivors", root, shared, survivors)


def pair(root: bytes, one: int, other: int) -> bytes:
    """The context of keys that two clients have in common, whoever asks."""
    return root + integers(sorted((one, other)))


def mask_key(common: bytes, root: bytes, one: int, other: int) -> bytes:
    """The key of the mask between two clients."""
    return derive(common, "mask", pair(root, one, other))


def seal_keys(common: bytes, root: bytes, me: int, other: int) -> tuple[bytes, bytes]:
    """The keys of what is sealed for another client, and of what it seals for this one."""
    both = derive(common, "seal", pair(root, me, other), 2)
    lower, higher = both[:KEY], both[KEY:]  # by who sends
    return (lower, higher) if me < other else (higher, lower)


def confirmation(seal: bytes, shared: bytes) -> bytes:
    """What a client tells a neighbour, by the key of its envelope: with whom it has masks.

    It is a second envelope, an empty one, of which only the seal is left.
    """
    return crypto.seal(seal, b"", shared, 1)


def self_key(seed: bytes, root: bytes) -> bytes:
    """The key of a client's own mask."""
    return derive(seed, "self", root)


def commitment_of(seed: bytes, session: bytes) -> bytes:
    """What is announced of the seed of a client's own mask."""
    return derive(seed, "commitment", session)
