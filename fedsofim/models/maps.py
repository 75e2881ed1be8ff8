"""Maps of records, `x -> P x`, where a record is a column with a last 1."""

import math

import numpy as np

from fedsofim.core.arrays import Array, of_the_last
from fedsofim.models.coded import Columns, blocks
from fedsofim.models.moments import SMALL, norms

try:
    from fedsofim_kernel import norms_through  # moments.c
except ImportError:  # it was installed without a compiler, or is older
    norms_through = None


@of_the_last
def similar(P: Array) -> float | None:
    """By what a map scales all features alike, if it does that and no more than move them."""
    scale, like = float(P[0, 0]), np.zeros_like(P)
    np.fill_diagonal(like, scale)
    like[:-1, -1], like[-1, -1] = P[:-1, -1], 1
    return scale if np.array_equal(P, like) and 0 < scale < math.inf else None


def mapped(P: Array, x: Array) -> Array:
    """`P x` of columns."""
    if similar(P) is None:
        return np.asarray(P @ x)
    z = x * P.diagonal()[:, None]  # without a matrix product
    z[:-1] += P[:-1, -1:]
    return np.asarray(z)


@of_the_last
def triangle(P: Array) -> Array:
    """An upper triangle T with |T x| = |P x| for every x, in half as many steps; in float32."""
    if not np.isfinite(P).all():
        return np.full(P.shape, np.nan, np.float32)
    return np.asarray(np.linalg.qr(P.astype(np.float64), mode="r"), np.float32)


def mapped_norms(T: Array, x: Array) -> Array:
    """The norms of the columns of `T x`, T being an upper triangle; they are not too small."""
    if isinstance(x, Columns):
        made = (mapped_norms(T, x[:, part]) for part in blocks(x.shape[1]))
        return np.concatenate([np.empty(0, x.dtype), *made])  # there may be none
    if norms_through and x.dtype == np.float32 and len(T) <= SMALL:
        norm = np.empty(x.shape[1], np.float32)
        norms_through(norm, T, x)
        return norm
    parts = (x[:, part] for part in blocks(x.shape[1]))
    return np.concatenate([x[0, :0], *(norms(T.astype(x.dtype) @ part) for part in parts)])
