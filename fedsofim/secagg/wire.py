"""How messages are written: fields with their lengths, numbers in little-endian order.

One value has one form, so that a digest of it is a digest of what it means, and whatever is read
back is checked: a message of a stranger can be too short, too long or senseless, and nothing else.
"""

import hashlib
from collections.abc import Iterable, Sequence
from struct import pack, unpack

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.secagg.errors import DistrustError, Reason, trust

WORD = 4


def join(fields: Iterable[bytes]) -> bytes:
    """Fields one after the other, each behind its length.

    >>> split(join([b"one", b"", b"three"]))
    [b'one', b'', b'three']
    """
    return b"".join(len(field).to_bytes(WORD, "little") + field for field in fields)


def split(blob: bytes, count: int | None = None, most: int | None = None) -> list[bytes]:
    """The fields of `join`, as many as are expected, or at most; no more are ever made."""
    fields: list[bytes] = []
    end, size, most = 0, len(blob), most if count is None else count
    while end < size:
        if len(fields) == most:
            raise DistrustError(Reason.MALFORMED, f"more than {most} fields")
        begin = end + WORD
        end = begin + int.from_bytes(blob[end:begin], "little")
        if max(begin, end) > size:
            raise DistrustError(Reason.MALFORMED, "it ends too soon")
        fields.append(blob[begin:end])
    trust(count in (None, len(fields)), Reason.MALFORMED, f"{len(fields)} fields, not {count}")
    return fields


def pieces(blob: bytes, size: int, count: int) -> list[bytes]:
    """Fields of one size."""
    trust(len(blob) == size * count, Reason.MALFORMED, f"{len(blob)} bytes, not {count} x {size}")
    return [blob[i : i + size] for i in range(0, len(blob), size)]


def integers(values: Sequence[int]) -> bytes:
    """Numbers from 0 to 2^32 - 1."""
    return pack(f"<{len(values)}I", *values)


def read_integers(blob: bytes, most: int | None = None) -> list[int]:
    """The numbers of `integers`, if there are at most so many."""
    trust(len(blob) % WORD == 0, Reason.MALFORMED, "not whole numbers")
    trust(most is None or len(blob) <= WORD * most, Reason.MALFORMED, f"more than {most} numbers")
    return list(unpack(f"<{len(blob) // WORD}I", blob))


def bitmap(roster: Sequence[int], chosen: Iterable[int]) -> bytes:
    """Which of the roster are chosen, a bit each."""
    return np.packbits(np.isin(roster, list(chosen))).tobytes()


def read_bitmap(roster: Sequence[int], blob: bytes) -> list[int]:
    """Who of the roster is chosen."""
    right = len(blob) == (len(roster) + 7) // 8
    bits = np.unpackbits(np.frombuffer(blob, np.uint8))
    trust(right and not bits[len(roster) :].any(), Reason.MALFORMED, "not a list of participants")
    return [number for number, bit in zip(roster, bits, strict=False) if bit]


def vector(values: Array) -> bytes:
    """Integers modulo 2^64."""
    return np.ascontiguousarray(values, "<u8").tobytes()


def read_vector(blob: bytes, length: int) -> Array:
    """The integers of `vector`, as many as are expected."""
    trust(len(blob) == 8 * length, Reason.MALFORMED, f"{len(blob)} bytes for {length} integers")
    return np.frombuffer(blob, "<u8")


def digest(label: str, *fields: bytes) -> bytes:
    """The SHA-256 of labelled fields."""
    return hashlib.sha256(join([label.encode(), *fields])).digest()
