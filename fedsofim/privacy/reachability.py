"""Which released numbers floating-point noise can reach: the attack of Mironov (2012).

A release is `fl(fl(S + fl(n * std)) / N)`, every step rounded to float32. Not every float32 is a
rounded product with `std`, so whoever knows S sees whether a release can have come from it. If some
other sum explains it and this one does not, the record is found, however large the noise was.
Noise that is whole on a grid, added to a sum on the same grid, reaches every point of it from
everywhere: the test is then at chance.
"""

import numpy as np

from fedsofim.core.arrays import Array

# Where the noise is this much smaller than the sum, too many draws lead to one number to try all.
CANCELLED = 1 / 8
# How far rounding leads, in units of the last place: of the quotient, the sum and the product.
QUOTIENT, SUM, PRODUCT = 3, 18, 2


def reachable(released: Array, total: Array, std: float, size: int) -> Array:
    """Which numbers of a release some float32 noise can have made from this sum.

    Args:
        released: what was sent, float32, `(..., K, F+1)`.
        total: the sum over records that is assumed, float32, of a shape that broadcasts to it.
        std: of the noise on the sum.
        size: what the noisy sum was divided by.

    Returns:
        One truth value a number; true where it cannot be told.
    """
    s, N = np.float32(std), np.float32(size)
    y = np.ascontiguousarray(released, np.float32)
    S = np.broadcast_to(total, y.shape).astype(np.float32)
    near = (y.astype(np.float64) * float(N)).astype(np.float32)
    ok: Array = np.abs(near.astype(np.float64) - S) < np.abs(near) * CANCELLED
    for i in range(-QUOTIENT, QUOTIENT + 1):
        e = _neighbour(near, i)
        divides = e / N == y
        if not divides.any():
            continue
        v_near = (e.astype(np.float64) - S).astype(np.float32)
        for j in range(-SUM, SUM + 1):
            v = _neighbour(v_near, j)
            adds = divides & ~ok & (S + v == e)
            if not adds.any():
                continue
            n_near = (v.astype(np.float64) / float(s)).astype(np.float32)
            for k in range(-PRODUCT, PRODUCT + 1):
                ok |= adds & (_neighbour(n_near, k) * s == v)
    return ok


def _neighbour(values: Array, steps: int) -> Array:
    """The float32 numbers so many units of the last place away."""
    order = values.view(np.int32).astype(np.int64)
    order = np.where(order < 0, -(order & 0x7FFFFFFF), order) + steps
    bits = np.where(order < 0, -order | 0x80000000, order).astype(np.uint32)
    return bits.view(np.float32)
