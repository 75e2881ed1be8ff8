"""Sums over records that say what their features are like: clipped, fast or exact.

Records are columns. A record whose norm is not finite contributes zero.
"""

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.sums import BoundedSum
from fedsofim.models import exact_sums

# Ranges of squared norms, in powers of two: norms from 2^-20 to 2^20.
FIRST, BINS = -40, 80


def norms(v: Array) -> Array:
    """The norm of each column, never too small: sums lose digits and squares may underflow."""
    square: Array = np.einsum("...kn,...kn->...n", v, v)
    limits = np.finfo(v.dtype)
    square *= 1 + v.shape[-2] * limits.eps
    square += limits.tiny
    return np.sqrt(square, out=square)


def feature_sum(x: Array, bound: float, exact: bool) -> BoundedSum:
    """The sum of the columns, `(F,)`, each clipped to norm `bound`."""
    if exact:
        return exact_sums.feature_sum(x, bound)
    x, w = _clipped(x, bound)
    return BoundedSum(x @ w, bound)


def second_moment(x: Array, bound: float, exact: bool, own: bool = False) -> BoundedSum:
    r"""The sum of $xx^\top$, x clipped to norm `bound`; if `own`, x is nobody else's."""
    if exact:
        return exact_sums.second_moment(x, bound)
    x, w = _clipped(x, bound)
    x = np.multiply(x, w, out=x if own else None)
    return BoundedSum(x @ x.T, bound**2)


def class_moments(
    x: Array, target: Array, bound: float, exact: bool
) -> tuple[BoundedSum, BoundedSum, BoundedSum]:
    r"""The sums of $xx^\top$, $e_yx^\top$ and $e_y$, x clipped to norm `bound`."""
    if exact:
        return exact_sums.class_moments(x, target, bound)
    x, w = _clipped(x, bound)
    x = x * w
    sums, counts = target @ x.T, target.sum(axis=1)
    return BoundedSum(x @ x.T, bound**2), BoundedSum(sums, bound), BoundedSum(counts, 1.0)


def norm_counts(x: Array, exact: bool) -> BoundedSum:
    """How many columns have a norm in each of `BINS` ranges; exact ones in units that noise fits.

    Bin b has squared norms from `2^(FIRST + b)` to twice that, the first and the last all beyond.
    """
    square = np.zeros(x.shape[1])
    if not exact:
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.einsum("kn,kn->n", x, x)
    limits = np.finfo(square.dtype)
    odd = np.flatnonzero(~((square > limits.tiny) & (square < limits.max)))  # all, if exact
    square = square.astype(np.float64)
    for start in range(0, len(odd), exact_sums.CHUNK):
        part = odd[start : start + exact_sums.CHUNK]
        square[part] = exact_sums.squares(x[:, part].astype(np.float64))
    good = np.isfinite(square) & (square > 0)
    place = np.clip(np.frexp(square[good])[1] - 1 - FIRST, 0, BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    one = 1 << exact_sums.GRADIENT_BITS
    if exact:
        return BoundedSum(counts * one, float(one), 1 / one)
    return BoundedSum(counts.astype(x.dtype), 1.0)


def _clipped(x: Array, bound: float) -> tuple[Array, Array]:
    """Columns, and what scales them to norm `bound`; one whose norm is not finite is zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        norm = norms(x)
    w, lost = np.minimum(1, bound / norm), ~np.isfinite(norm)
    if lost.any():
        x, w = np.where(lost, 0, x), np.where(lost, 0, w)
    return x, w.astype(x.dtype, copy=False)
