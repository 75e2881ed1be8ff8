r"""Sums of clipped contributions, in exact integers: what a deployed client releases.

The sums of `head.py` are fast, and float32: which contributions come first, and who else is there,
decides how they round. Here one record moves a sum by no more than is charged, in exact arithmetic,
whatever the records, their number, the parameters and the transform are.

**Claim.** `gradient_sum` returns $S = \sum_i a_i b_i^\top$ with integer vectors $a_i, b_i$ that are
functions of record i and of public values alone, and $\lVert a_i b_i^\top\rVert_F = \lVert
a_i\rVert\,\lVert b_i\rVert \le B$. So replacing a record moves S by at most 2B, and adding or
removing one by at most B.

*Exact products.* float64 holds every integer up to $2^{53}$. A matrix product of integers whose
sums of absolute values stay below it rounds nowhere, in any order of its terms, so BLAS may be
used. Public matrices (parameters, transform) are rounded to integers that leave room for that;
records are rounded first of all, each on its own power-of-two scale.

*Of record i alone.* Everything else is element by element, in operations that IEEE 754 rounds
correctly (+, -, *, /, sqrt, rint, floor, and multiplication with powers of two), or maxima, or sums
of rows by halves. No vector width, tail of a loop, thread or neighbour can change a bit. `_exp` is
made of these, since that of a C library is not. The transform is applied to each record, before the
clip.

*The bound.* Three comparisons of integers below $2^{53}$, which no rounding touches, are made for
every record: $m^2 \ge \lVert b\rVert^2$, $A\,m \le B$ and $\lVert a\rVert^2 \le A^2$. Together they
say $\lVert a\rVert\,\lVert b\rVert \le A\,m \le B$. (A sum of squares that leaves the range only
rounds to what is above $A^2$, too.) A record for which one fails, as for NaN, contributes zero: the
bound needs no trust in how a and b came about.

*The sum.* The products of at most `CHUNK` records are below CHUNK B < $2^{53}$; those of at most
`MAX_RECORDS` are below $2^{62}$, which int64 holds.

The clip C is $B = \lfloor C/\gamma\rfloor$ units of $\gamma$, the power of two with $2^{36} \le
C/\gamma < 2^{37}$; a has about 18 bits, b 18 or a few more. This is as fine as the features are,
and changes a record's contribution by about 1e-5 of C.
"""

import math

import numpy as np

from fedsofim.core.arrays import Array, Scale
from fedsofim.core.errors import require
from fedsofim.core.sums import BoundedSum
from fedsofim.models.records import Factors

# Bits of a record's numbers, of those of one that is mapped, of residuals on their way through a
# transform, and of the bounds of a gradient's, a feature vector's and a deep gradient's norm: the
# square of the last two is exact.
RECORD_BITS, MAPPED_BITS, RESIDUAL_BITS = 18, 22, 24
GRADIENT_BITS, FEATURE_BITS, DEEP_BITS = 36, 18, 25
EXACT_BITS = 53
CHUNK = 1024
MAX_RECORDS = 1 << 25
MAX_WIDTH = 1 << 16

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.693147180369123816490, 1.90821492927058770002e-10
TAYLOR = [1 / math.factorial(k) for k in range(13, -1, -1)]


def grid(clip: Scale, bits: int) -> tuple[float, float]:
    """The largest norm B in whole units, `2^bits <= B < 2^(bits+1)`, and the power-of-two unit.

    >>> grid(10.0, 3), grid(0.1, 3)
    ((10.0, 1.0), (12.0, 0.0078125))
    """
    single = float(np.asarray(clip).item())  # of one model; a stack's heads have no common grid
    require(0 < single < math.inf, f"clip={single}: exact sums need a finite clip > 0")
    unit = math.ldexp(1.0, math.frexp(single)[1] - bits - 1)
    return float(math.floor(single / unit)), unit


def gradient_sum(
    theta: Array, x: Array, target: Array, clip: Scale, factors: Factors | None = None
) -> BoundedSum:
    """The sum of a linear head's clipped gradients, in integers.

    Args:
        theta: parameters, `(K, F+1)`.
        x: features with a last row of ones, `(F+1, N)`.
        target: one-hot labels, `(K, N)`.
        clip: the largest norm of one example's gradient.
        factors: the transform that gradients go through before they are clipped, if any.
    """
    (K, width), N = theta.shape[-2:], x.shape[1]
    require(theta.size == K * width, f"theta of shape {theta.shape}: one head at a time")
    require(N <= MAX_RECORDS, f"{N} records: exact sums hold at most {MAX_RECORDS}")
    require(width <= MAX_WIDTH, f"{width - 1} features: exact sums take fewer than {MAX_WIDTH}")
    B, unit = grid(clip, GRADIENT_BITS)
    total = np.zeros((K, width), np.int64)
    public = [theta, *(factors or ())]
    if all(np.isfinite(matrix).all() for matrix in public):  # else no gradient is
        for start in range(0, N, CHUNK):
            part = slice(start, start + CHUNK)
            a, b = contributions(
                theta.reshape(K, width), x[:, part], target[:, part], B, unit, factors
            )
            total += (a @ b.T).astype(np.int64)
    return BoundedSum(total.reshape(theta.shape), B, unit)


def contributions(
    theta: Array, x: Array, target: Array, B: float, unit: float, factors: Factors | None
) -> tuple[Array, Array]:
    """Each record's integer vectors, `(K, N)` and `(F+1, N)`; their product is its contribution."""
    with np.errstate(all="ignore"):  # what is not finite in the end contributes zero
        b, scale = _integers(x.astype(np.float64), RECORD_BITS)
        u = _residual(_product(theta, b, RECORD_BITS) * scale, target)
        if factors is not None:
            r, size = _integers(u, RESIDUAL_BITS)
            u = _product(factors.U_G, r, RESIDUAL_BITS) * size
            b, more = _integers(_product(factors.U_A.T, b, RECORD_BITS), RECORD_BITS)
            scale = scale * more
        square = squares(b)
        m = np.ceil(np.sqrt(square))
        A = np.floor(B / m)
        room = np.maximum(A - (math.sqrt(len(u)) / 2 + 1), 0)  # rint moves a by sqrt(K)/2 at most
        a = np.rint(u * np.minimum(scale / unit, room / np.sqrt(squares(u))))
        good = (m * m >= square) & (A * m <= B) & (squares(a) <= A * A) & (A < 2**26)
    return np.where(good, a, 0.0), b


def second_moment(x: Array, bound: float) -> BoundedSum:
    """The sum of `x x'` over the records, the columns of x, clipped to norm `bound`, in integers.

    A record is an integer vector of norm at most B, and adds at most `B^2`. When one is replaced,
    `aa'` becomes `bb'`, and `|aa' - bb'|^2 = |a|^4 + |b|^4 - 2 (a'b)^2 <= 2 B^4`.
    """
    width, N = x.shape
    require(N <= MAX_RECORDS, f"{N} records: exact sums hold at most {MAX_RECORDS}")
    B, unit = grid(bound, FEATURE_BITS)
    total = np.zeros((width, width), np.int64)
    for start in range(0, N, CHUNK):
        v = clipped_integers(x[:, start : start + CHUNK].astype(np.float64), B, unit)
        total += (v @ v.T).astype(np.int64)
    return BoundedSum(total, B * B, unit * unit)


def class_moments(
    x: Array, target: Array, bound: float
) -> tuple[BoundedSum, BoundedSum, BoundedSum]:
    """As `second_moment`; the sums of the same integer vectors by class, and how many each has.

    They are in finer units, of about the same number of bits, for integer noise has to be large.
    """
    width, N = x.shape
    second, (B, unit) = second_moment(x, bound), grid(bound, FEATURE_BITS)
    sums = np.zeros((len(target), width), np.int64)
    for start in range(0, N, CHUNK):
        part = slice(start, start + CHUNK)
        v = clipped_integers(x[:, part].astype(np.float64), B, unit)
        sums += (target[:, part].astype(np.float64) @ v.T).astype(np.int64)
    counts, fine, one = target.astype(np.int64).sum(axis=1), 1 << FEATURE_BITS, 1 << GRADIENT_BITS
    return (
        second,
        BoundedSum(sums * fine, B * fine, unit / fine),
        BoundedSum(counts * one, float(one), 1 / one),
    )


def feature_sum(x: Array, bound: float) -> BoundedSum:
    """The sum of the records, the columns of x, clipped to norm `bound`, in integers.

    A record is an integer vector of norm at most B, and no sum of a chunk leaves $2^{53}$.
    """
    width, N = x.shape
    require(N <= MAX_RECORDS, f"{N} records: exact sums hold at most {MAX_RECORDS}")
    B, unit = grid(bound, DEEP_BITS)
    total = np.zeros(width, np.int64)
    for start in range(0, N, CHUNK):
        v = clipped_integers(x[:, start : start + CHUNK].astype(np.float64), B, unit)
        total += v.sum(axis=1).astype(np.int64)
    return BoundedSum(total, B, unit)


def mapped(P: Array, x: Array) -> Array:
    """A public matrix times each record, a column of x; of record i it depends on i alone.

    A matrix product of floats would not do: how it rounds a column depends on its neighbours. A
    record that is not finite becomes zero.
    """
    out = np.empty((len(P), x.shape[1]), x.dtype)
    with np.errstate(all="ignore"):  # what grows beyond the range is clipped to nothing later
        for start in range(0, x.shape[1], CHUNK):
            part = slice(start, start + CHUNK)
            b, scale = _integers(x[:, part].astype(np.float64), MAPPED_BITS)
            out[:, part] = _product(P, b, MAPPED_BITS) * scale
    return out


def clipped_integers(v: Array, B: float, unit: float) -> Array:
    """Each column in units, clipped to norm B, and checked: a norm in integers, or it is zero."""
    with np.errstate(all="ignore"):
        room = B - (math.sqrt(len(v)) / 2 + 1)
        w = np.rint(v * np.minimum(1 / unit, room / np.sqrt(squares(v))))
        return np.where(squares(w) <= B * B, w, 0.0)


def _integers(v: Array, bits: int) -> tuple[Array, Array]:
    """Columns as integers of `bits` bits, and the power of two that 1 stands for in each, `(1, N)`.

    A column with a number that is not finite, or out of range, is zero.
    """
    largest = np.abs(v).max(axis=0, keepdims=True)
    scale = np.ldexp(1.0, np.frexp(largest)[1] - bits)
    good = np.isfinite(largest) & (scale > 0) & np.isfinite(scale)
    scale = np.where(good, scale, 1.0)
    return np.rint(np.where(good, v, 0.0) / scale), scale


def _product(public: Array, v: Array, bits: int) -> Array:
    """A public matrix times columns of integers of `bits` bits.

    The matrix is rounded to integers, row by row, so that no sum exceeds $2^{53}$: the product of
    integers is exact, and is then scaled by powers of two.
    """
    room = EXACT_BITS - bits - (len(v) - 1).bit_length()
    M, scale = _integers(public.T.astype(np.float64), room)
    return np.asarray((M.T @ v) * scale.T)


def squares(v: Array) -> Array:
    """The squared norm of each column; exact for integers as long as it is below $2^{53}$."""
    return _sum(v * v)


def _sum(v: Array) -> Array:
    """The sum of the rows, in an order that depends on their number alone: by halves."""
    while (half := len(v) // 2) > 0:
        v = np.concatenate([v[:half] + v[half : 2 * half], v[2 * half :]])
    return np.asarray(v[0])


def _residual(z: Array, target: Array) -> Array:
    """`softmax(z) - onehot(y)` of each column."""
    e = _exp(np.maximum(z - z.max(axis=0), -700))
    return np.asarray(e / _sum(e) - target)


def _exp(x: Array) -> Array:
    """`e^x` for x from -700 to 0, to a few units in the last place."""
    n = np.rint(x * LOG2_E)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = np.full_like(r, TAYLOR[0])
    for coefficient in TAYLOR[1:]:
        p *= r
        p += coefficient
    return np.asarray(p * ((n.astype(np.int64) + 1023) << 52).view(np.float64))
