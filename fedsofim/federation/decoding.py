"""What others send, made safe: bytes become arrays, and texts become one short line.

Nothing here believes what it reads. The bytes of an array must be exactly those that NumPy writes
for the shape and type that were announced, so no header decides how much memory is taken, and
neither pickles nor archives are ever opened.
"""

import math
import re
import reprlib
from typing import Any, Protocol

import numpy as np

from fedsofim.core.arrays import Array

# Plain numbers, by the name that an announcement gives them.
TYPES = {np.dtype(code).name: np.dtype(code) for code in "?bBhHiIqQefd"}
# The first bytes of an NPY file, with its version, and the length of the header's own length.
STARTS = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}
LONGEST_HEADER = 1024
# How much of a stranger's text is shown.
TEXT = 160


class Encoded(Protocol):
    """An array as Flower carries it: what it is said to be, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


class DecodingError(ValueError):
    """Bytes that are not the array they are said to be."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DecodingError(message)


def decode(
    raw: Encoded, shape: tuple[int, ...] | None = None, dtype: np.dtype[Any] | None = None
) -> Array:
    """The array that `raw` carries, read in place: it takes no memory of its own.

    Args:
        raw: what arrived.
        shape: what it must be; whatever is announced by default.
        dtype: what it must be; any plain number by default.

    Raises:
        DecodingError: if it is not exactly that.

    >>> from types import SimpleNamespace
    >>> import io
    >>> file = io.BytesIO(); np.save(file, np.arange(3.0))
    >>> sent = SimpleNamespace(dtype="float64", shape=(3,), stype="numpy.ndarray")
    >>> sent.data = file.getvalue()
    >>> decode(sent).tolist()
    [0.0, 1.0, 2.0]
    >>> sent.shape = (1 << 40,)
    >>> decode(sent)
    Traceback (most recent call last):
    fedsofim.federation.decoding.DecodingError: has another header than its shape and type
    """
    _require(raw.stype == "numpy.ndarray", f"is a {shown(raw.stype)}, not a numpy.ndarray")
    said, kind = tuple(raw.shape), TYPES.get(raw.dtype)
    _require(
        kind is not None and dtype in (None, kind), f"has dtype {shown(raw.dtype)}, not {dtype}"
    )
    assert kind is not None
    counts = all(type(n) is int and n >= 0 for n in said)
    _require(counts and shape in (None, said), f"has shape {shown(said)}, not {shape}")
    data = raw.data
    _require(isinstance(data, bytes), "has no bytes")
    start, offset = _header(data)
    order = _order(data[start:offset], kind, said)
    _require(len(data) - offset == math.prod(said) * kind.itemsize, "has too few or too many bytes")
    return np.ndarray(said, kind, data, offset, order=order)


def _header(data: bytes) -> tuple[int, int]:
    """Where the header begins and ends, if there is a usual one."""
    width = STARTS.get(data[:8], 0)
    start = 8 + width
    length = int.from_bytes(data[8:start], "little")
    offset = start + length
    usual = width > 0 and length <= LONGEST_HEADER and offset % 16 == 0  # numbers stay aligned
    _require(usual, "is not in NumPy's format")
    return start, offset


def _order(header: bytes, kind: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """The order of the numbers, if the header says what it must and nothing else."""
    for fortran in (False, True):
        right = f"{{'descr': {kind.str!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}"
        if header.rstrip(b" \n") == right.encode():
            return "F" if fortran else "C"
    raise DecodingError("has another header than its shape and type")


class _Short(reprlib.Repr):
    """Numbers and lists in a few words, however long they are."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlong, self.maxother, self.maxstring = 2, 40, 40, TEXT


def shown(value: object, length: int = TEXT) -> str:
    r"""What someone else said, fit for a log, a terminal, a file and a page.

    One line, cut, without control characters (which could forge lines or steer a terminal) and
    without what rich or a browser would take for markup.

    >>> shown("\x1b[31mBOO\nround 70: accuracy 99 %[bold red]")
    '\\x1b[31mBOO\\nround 70: accuracy 99 %(bold red]'
    >>> shown([1] * 1000), shown("a" * 1000, 10)
    ('[1, 1, 1, 1, 1, 1, ...]', 'aaaaaaaaa…')
    """
    try:
        text = value[: 4 * length] if isinstance(value, str) else _Short().repr(value)
    except Exception:  # a number of more digits than Python prints
        text = f"a {type(value).__name__}"
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    ).translate({ord("<"): "(", ord(">"): ")"})
    safe = re.sub(r"\[(?=[A-Za-z#/@])", "(", safe)
    return safe if len(safe) <= length else f"{safe[: length - 1]}…"
