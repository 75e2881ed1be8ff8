"""Maps of records, `x -> P x`, where a record is a column with a last 1."""

import math
from functools import partial
from typing import cast

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.models.coded import Columns, blocks
from fedsofim.models.moments import SMALL, norms

try:
    from fedsofim_kernel import map_columns  # moments.c
except ImportError:  # it was installed without a compiler, or is older
    map_columns = None


def similar(P: Array) -> float | None:
    """By what a map scales all features alike, if it does that and no more than move them."""
    scale, inner = float(P[0, 0]), np.count_nonzero(P[:-1]) - np.count_nonzero(P[:-1, -1])
    same = inner == len(P) - 1 and bool((P.diagonal()[:-1] == scale).all())
    last = not P[-1, :-1].any() and P[-1, -1] == 1
    return scale if same and last and 0 < scale < math.inf else None


def mapped(P: Array, x: Array) -> Array:
    """`P x` of columns."""
    return _mapped(P, x)[0]


def through(P: Array, x: Array, out: Array | None = None) -> tuple[Array, Array]:
    """`P x`, in `out` if it is given, and the norms of its columns, not too small.

    Of columns that are not made yet, only the norms are found now.
    """
    if not isinstance(x, Columns):
        return _mapped(P, x, out)
    norm = np.concatenate([_mapped(P, x[:, part])[1] for part in blocks(x.shape[1])])
    return cast(Array, Columns(x.rows, partial(mapped, P))), norm


def _mapped(P: Array, x: Array, out: Array | None = None) -> tuple[Array, Array]:
    z = np.empty(x.shape, x.dtype) if out is None else out
    if map_columns and P.dtype == x.dtype == np.float32 and len(P) <= SMALL:
        norm = np.empty(x.shape[1], np.float32)
        map_columns(z, norm, np.ascontiguousarray(P), x)
        return z, norm
    if similar(P) is None:
        np.matmul(P, x, out=z)
    else:  # without a matrix product
        np.multiply(x, P.diagonal()[:, None], out=z)
        z[:-1] += P[:-1, -1:]
    return z, norms(z)
