"""Features as a file holds them: read where they lie, and made floats a few at a time.

Few records are worked on as float32 in memory, which is fastest. Many stay what they are: half
precision, 8-bit codes, a mapped file. What then stands in the place of an array is one of the views
below: a part of it is an array, made when it is asked for, and NumPy takes all of it as one. The
numbers are those of an array that was made at once, so results have the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedsofim.core.arrays import Array

try:
    from fedsofim_kernel import decode_rows  # held.c
except ImportError:  # it was installed without a compiler, or is older
    decode_rows = None

# Features that would take more bytes than this as float32 are left as they are. To make floats of
# them in every pass takes time, so the embedded ones stay below.
LARGE = 3 << 26
# Rows made floats at a time, where nothing else decides it.
BLOCK = 4096
# Types that the kernel makes floats of.
KNOWN = tuple(map(np.dtype, (np.uint8, np.float16, np.float32)))


def is_large(features: Array) -> bool:
    """Whether features `(N, F)` are better left as they are."""
    return features.size * np.dtype(np.float32).itemsize > LARGE


def blocks(count: int, size: int = BLOCK) -> Iterator[slice]:
    """Slices that cover so many rows."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


class View(ABC):
    """What looks like a float32 array with two axes, and becomes one where NumPy asks for it."""

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    ndim: ClassVar[int] = 2

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Its rows and columns."""

    @abstractmethod
    def made(self) -> Array:
        """All of it, as an array."""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.made().astype(dtype or self.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Rows(View):
    """Features `(N, F)`, one record a row; parts of them are views, too.

    Attributes:
        held: all records as they are held, `(M, F)`, of any type of number.
        scale: what codes are multiplied with, `(F,)`, if they are codes.
        lo: what is then added, `(F,)`.
        which: the records that these are, `(N,)`; by default all.
    """

    held: Array
    scale: Array | None = None
    lo: Array | None = None
    which: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.held if self.which is None else self.which), self.held.shape[1]

    def __getitem__(self, part: slice | Array) -> "Rows":
        if self.which is not None:
            return Rows(self.held, self.scale, self.lo, self.which[part])
        if isinstance(part, slice):
            return Rows(self.held[part], self.scale, self.lo)
        small = np.int32 if len(self.held) < 2**31 else np.intp
        return Rows(self.held, self.scale, self.lo, part.astype(small, copy=False))

    def made(self) -> Array:
        out = np.empty(self.shape, np.float32)
        self.write(out.T)
        return out

    def write(self, out: Array) -> None:
        """Write the features to `out`, `(F, N)`, one record a column."""
        if self.known and out.strides[1] == out.itemsize:
            decode_rows(out, *self.parts)
            return
        held = self.held if self.which is None else self.held[self.which]
        with np.errstate(over="ignore"):  # too large for float32 is infinite
            np.copyto(out, held.T, casting="same_kind")
        if self.scale is not None and self.lo is not None:
            out *= self.scale[:, None]
            out += self.lo[:, None]

    @property
    def known(self) -> bool:
        """Whether the kernel makes floats of them."""
        small = self.which is None or self.which.dtype == np.int32
        kind = self.held.dtype in KNOWN and self.held.flags.c_contiguous
        return bool(decode_rows and small and kind)

    @property
    def parts(self) -> tuple[Array | None, ...]:
        """What the kernel asks of them: the bytes of rows, which rows, scale and lo."""
        which = None if self.which is None else np.ascontiguousarray(self.which)
        return self.held.view(np.uint8), which, self.scale, self.lo


@dataclass(frozen=True, eq=False)
class Columns(View):
    """Features with a last row of ones, `(F+1, N)`, one record a column.

    Attributes:
        rows: the features.
    """

    rows: Rows

    @property
    def shape(self) -> tuple[int, int]:
        n, F = self.rows.shape
        return F + 1, n

    def __getitem__(self, key: Any) -> Array:
        match key:
            case (first, part) if first is Ellipsis or first == slice(None):
                return Columns(self.rows[part]).made()
        return np.asarray(self.made()[key])

    def made(self) -> Array:
        x = np.empty(self.shape, np.float32)
        x[-1] = 1
        self.rows.write(x[:-1])
        return x


@dataclass(frozen=True, eq=False)
class OneHot(View):
    """One-hot labels, `(K, N)`.

    >>> OneHot(np.array([1, 0, 1]), 2)[:, 1:]
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """

    labels: Array
    classes: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.classes, len(self.labels)

    def __getitem__(self, key: tuple[Any, slice | Array]) -> Array:
        return OneHot(self.labels[key[1]], self.classes).made()

    def made(self) -> Array:
        target = np.zeros(self.shape, np.float32)
        target[self.labels, np.arange(len(self.labels))] = 1
        return target
