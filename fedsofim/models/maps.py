"""Maps of records, `x -> P x`, where a record is a column with a last 1."""

import math
from functools import partial
from typing import cast

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.models.coded import Columns


def similar(P: Array) -> float | None:
    """By what a map scales all features alike, if it does that and no more than move them."""
    U, scale = P[:-1, :-1], float(P[0, 0])
    same = np.count_nonzero(U) == len(U) and bool((U.diagonal() == scale).all())
    last = not P[-1, :-1].any() and P[-1, -1] == 1
    return scale if same and last and 0 < scale < math.inf else None


def mapped(P: Array, x: Array) -> Array:
    """`P x`; where P only scales and shifts, without a matrix product."""
    scale = similar(P)
    if scale is None:
        return np.asarray(P @ x)
    z = x * P.diagonal()[:, None]
    z[:-1] += P[:-1, -1:]
    return np.asarray(z)


def through(P: Array, x: Array) -> Array:
    """`P x` now; or, of columns that are not made yet, when they are."""
    if isinstance(x, Columns):
        return cast(Array, Columns(x.rows, partial(mapped, P)))
    return mapped(P, x)
