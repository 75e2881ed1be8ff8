"""Sums over records that say what their features are like: clipped, fast or exact.

Records are columns. A record whose norm is not finite contributes zero.
"""

import math
from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.sums import BoundedSum
from fedsofim.models import exact_sums
from fedsofim.models.coded import Columns, blocks

try:
    from fedsofim_kernel import clipped_moment, weighted_sum  # moments.c
except ImportError:  # it was installed without a compiler, or is older
    clipped_moment = weighted_sum = None

# Ranges of squared norms, in powers of two: norms from 2^-20 to 2^20.
FIRST, BINS = -40, 80
# Which fields of exponents in a float64 begin a bin, and which one is of infinity and NaN.
FIELDS, INFINITE = np.array([0, *range(FIRST + 1024, FIRST + 1023 + BINS)]), 2047
# Second moments of so few features are too small for BLAS.
SMALL = 128


def norms(v: Array) -> Array:
    """The norm of each column, never too small: sums lose digits and squares may underflow."""
    if isinstance(v, Columns):
        parts = (norms(v[:, part]) for part in blocks(v.shape[1]))
        return np.concatenate([np.empty(0, v.dtype), *parts])  # there may be none
    square: Array = np.einsum("...kn,...kn->...n", v, v)
    limits = np.finfo(v.dtype)
    square *= 1 + v.shape[-2] * limits.eps
    square += limits.tiny
    return np.sqrt(square, out=square)


class Features(NamedTuple):
    """The features of examples, for sums over them; examples are columns.

    Attributes:
        x: `(F, N)`.
        target: one-hot labels, `(K, N)`.
        norm: the norm of each column with a last 1, not too small, if it is known; for fast sums.
        shift: what is still to be added to every column, `(F,)`, if anything.
        scale: what they are still to be multiplied with, after that.
    """

    x: Array
    target: Array
    norm: Array | None = None
    shift: Array | None = None
    scale: float = 1.0

    def feature_sum(
        self, bound: float, exact: bool = False, floor: float | None = None
    ) -> BoundedSum:
        """The sum of features, `(F,)`, raised to `floor` if given, then clipped to norm `bound`."""
        if exact:
            return exact_sums.feature_sum(_raised(self._moved(), floor), bound)
        if (total := self._sum_of_nonnegative(bound, floor)) is not None:
            return BoundedSum(total, bound)
        x = _raised(self._shifted(), None if floor is None else floor / self.scale)
        square = self.known_squares() if x is self.x else None
        x, w = _clipped(x, bound / self.scale, None if square is None else np.sqrt(square))
        return BoundedSum((x @ w) * x.dtype.type(self.scale), bound)

    def _sum_of_nonnegative(self, bound: float, floor: float | None) -> Array | None:
        """What `feature_sum` adds up, in one pass, if the floor is 0 and nothing is below it."""
        square = self.known_squares() if floor == 0 and self.shift is None else None
        if square is None or not weighted_sum or self.x.dtype != np.float32:
            return None
        x, w = _clipped(self.x, bound / self.scale, np.sqrt(square))
        total = np.empty(len(x), np.float32)
        return total * np.float32(self.scale) if weighted_sum(total, x, w) else None

    def second_moment(self, bound: float, exact: bool = False, bias: bool = False) -> BoundedSum:
        r"""The sum of $xx^\top$, x clipped to norm `bound`; with a last 1 if asked for."""
        F, dtype, most = len(self.x), self.x.dtype, bound / self.scale
        if exact or bias:
            last = np.ones((int(bias), self.x.shape[1]), dtype)
            return second_moment(np.concatenate([self._moved(), last]), bound, exact)
        if clipped_moment and dtype == np.float32 and F <= SMALL:
            S = np.empty((F, F), np.float32)
            shift = np.zeros(F, np.float32) if self.shift is None else self.shift
            clipped_moment(self.x, shift, most, S)
        else:
            S = second_moment(self._shifted(), most, exact).value
        return BoundedSum(S if self.scale == 1 else S * dtype.type(self.scale**2), bound**2)

    def class_moments(
        self, bound: float, exact: bool = False
    ) -> tuple[BoundedSum, BoundedSum, BoundedSum]:
        r"""The sums of $cc^\top$, $e_yc^\top$ and $e_y$; c: features over $\sqrt F$, clipped."""
        x = self._moved() / self.x.dtype.type(math.sqrt(len(self.x)))
        if exact:
            return exact_sums.class_moments(x, self.target, bound)
        x, w = _clipped(x, bound)
        x = x * w
        sums, counts = self.target @ x.T, self.target.sum(axis=1)
        return BoundedSum(x @ x.T, bound**2), BoundedSum(sums, bound), BoundedSum(counts, 1.0)

    def norm_counts(self, exact: bool = False) -> BoundedSum:
        """How many features have a norm in each of `BINS` ranges; exact: in units that noise fits.

        Bin b has squared norms from `2^(FIRST + b)` to twice that, the first and the last all
        beyond.
        """
        if exact:
            x = self._moved()
            parts = np.array_split(x, range(exact_sums.CHUNK, x.shape[1], exact_sums.CHUNK), axis=1)
            square = np.concatenate([exact_sums.squares(part.astype(np.float64)) for part in parts])
        else:
            square = self._squares() * self.scale**2
        counts = _counted(square)
        one = 1 << exact_sums.GRADIENT_BITS
        if exact:
            return BoundedSum(counts * one, float(one), 1 / one)
        return BoundedSum(counts.astype(self.x.dtype), 1.0)

    def _squares(self) -> Array:
        r"""The squared norm of every shifted column, in float64; they are not moved for it.

        $|x + s|^2 = |x|^2 + 2s^\top x + |s|^2$ loses digits where s takes most of x away, and a
        square may leave the range of a float; such columns are reckoned one by one.
        """
        x, limits = self.x, np.finfo(self.x.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            known = self.known_squares()
            first = np.einsum("kn,kn->n", x, x) if known is None else known
            square = first.astype(np.float64)
            if self.shift is not None:
                square += 2 * (self.shift @ x)
                square += float(self.shift @ self.shift)
            good = (first > limits.tiny) & (first < limits.max) & (square > 1e-3 * first)
        odd = np.flatnonzero(~good)
        for start in range(0, len(odd), exact_sums.CHUNK):
            part = odd[start : start + exact_sums.CHUNK]
            few = self._replace(x=x[:, part].astype(np.float64))
            square[part] = exact_sums.squares(few._shifted())
        return square

    def known_squares(self) -> Array | None:
        """The squared norm of each column, if norms are known and the 1 is not most of them."""
        if self.norm is None or not self.norm.size:
            return None
        square = self.norm * self.norm * (1 + 8 * np.finfo(self.norm.dtype).eps) - 1
        return square if square.min() > 0.5 else None  # no, if one is NaN

    def _shifted(self) -> Array:
        if self.shift is None:
            return self.x
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.x + self.shift[:, None])

    def _moved(self) -> Array:
        x = self._shifted()
        return x if self.scale == 1 else np.asarray(x * x.dtype.type(self.scale))


def _raised(x: Array, floor: float | None) -> Array:
    """Columns, nothing in them below `floor`."""
    return x if floor is None or (x.size and x.min() >= floor) else np.maximum(x, floor)


def _counted(square: Array) -> Array:
    """How many of these squared norms are in each bin; one that is 0 or not finite, in none."""
    bits = np.asarray(square, np.float64).view(np.int64)
    found = np.bincount(bits >> 52 & 0xFFF, minlength=4096)  # by the sign and the exponent
    found[0] -= np.count_nonzero(bits == 0)  # what is left is too small for an exponent
    return np.add.reduceat(found[:INFINITE], FIELDS)


def second_moment(x: Array, bound: float, exact: bool) -> BoundedSum:
    r"""The sum of $xx^\top$, x clipped to norm `bound`; records are columns."""
    if exact:
        return exact_sums.second_moment(x, bound)
    x, w = _clipped(x, bound)
    x = x * w
    return BoundedSum(x @ x.T, bound**2)


def _clipped(x: Array, bound: float, norm: Array | None = None) -> tuple[Array, Array]:
    """Columns, and what scales them to norm `bound`; one whose norm is not finite is zero."""
    if norm is None:
        with np.errstate(over="ignore", invalid="ignore"):
            norm = norms(x)
    w, lost = np.minimum(1, bound / norm), ~np.isfinite(norm)
    if lost.any():
        x, w = np.where(lost, 0, x), np.where(lost, 0, w)
    return x, w.astype(x.dtype, copy=False)
