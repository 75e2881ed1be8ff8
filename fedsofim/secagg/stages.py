"""The stages of a session, and what both sides compute from what was said in them.

| stage | the server shows | a client answers |
|---|---|---|
| ADVERT | the session | two public keys, a commitment to its seed, signed with its long-term key |
| SHARE | who takes part, and the neighbours' keys | shares of its two secrets, sealed |
| MASK | who has shared, and what is sealed for it | its vector under all masks, confirmations |
| SIGN | who sent a vector | its signature of that list |
| UNMASK | signatures, confirmations for it | its seed, and one share of each neighbour |

Without recovery there are two: ADVERT, and MASK, in which the server shows what it does in SHARE.

Every request but the first carries the session's name. From SHARE on all keys, envelopes and
signatures depend on the `root`, a digest of the session, the roster and everybody's keys: to
clients that were shown different rosters, each other's messages are noise.
"""

from collections.abc import Sequence
from enum import IntEnum

from fedsofim.secagg import primitives as crypto
from fedsofim.secagg.errors import Reason, trust
from fedsofim.secagg.primitives import KEY, derive
from fedsofim.secagg.wire import digest, integers, join, pieces, split


class Stage(IntEnum):
    """In the order in which they come."""

    ADVERT = 1
    SHARE = 2
    MASK = 3
    SIGN = 4
    UNMASK = 5


ALL = tuple(Stage)
WITHOUT_RECOVERY = (Stage.ADVERT, Stage.MASK)
# A client's long-term key serves others, too, such as Flower: nothing they sign begins like this.
SIGNED = b"fedsofim secure aggregation\0"


def stage_of(message: bytes) -> Stage:
    """The stage that a request or an answer belongs to."""
    trust(message[:1] in {bytes([stage]) for stage in Stage}, Reason.MALFORMED, "no such stage")
    return Stage(message[0])


def read_advert(advert: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """The keys for envelopes and for masks, the commitment, and the signature."""
    public, signature = split(advert, 2)
    seal_key, mask_key, commitment = pieces(public, KEY, 3)
    return seal_key, mask_key, commitment, signature


def advert_message(session: bytes, number: int, public: bytes) -> bytes:
    """What a client signs about its keys, in the session of this name."""
    return SIGNED + digest("advert", session, integers([number]), public)


def root_of(session: bytes, roster: Sequence[int], digests: bytes) -> bytes:
    """What everybody who takes part in the same session with the same others agrees on."""
    return digest("root", session, integers(roster), digests)


def advert_digest(advert: bytes) -> bytes:
    """A name for an advert."""
    return digest("keys", advert)


def survivors_message(root: bytes, shared: bytes, survivors: bytes) -> bytes:
    """What a client signs about those who are left."""
    return SIGNED + digest("survivors", root, shared, survivors)


def pair(root: bytes, one: int, other: int) -> bytes:
    """The context of a key that two clients have in common."""
    return join([root, integers([one, other])])


def mask_key(common: bytes, root: bytes, one: int, other: int) -> bytes:
    """The key of the mask between two clients, whoever asks."""
    return derive(common, "mask", pair(root, min(one, other), max(one, other)))


def seal_key(common: bytes, root: bytes, sender: int, receiver: int) -> bytes:
    """The key of the envelope from one client to another."""
    return derive(common, "seal", pair(root, sender, receiver))


def confirmation(seal: bytes, shared: bytes) -> bytes:
    """What a client tells a neighbour, by the key of its envelope: with whom it has masks.

    It is an empty envelope, of which only the seal is left.
    """
    return crypto.seal(derive(seal, "confirm", b""), b"", shared)


def self_key(seed: bytes, root: bytes) -> bytes:
    """The key of a client's own mask."""
    return derive(seed, "self", root)


def commitment_of(seed: bytes, session: bytes) -> bytes:
    """What is announced of the seed of a client's own mask."""
    return derive(seed, "commitment", session)
