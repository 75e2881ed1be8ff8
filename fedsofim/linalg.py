"""The few pieces of linear algebra that the methods share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# One number, or one for each head of a stack, `(S, 1, 1)`.
Scale = float | Array


def rank_one_solve(m: Array, rho: float, v: Array) -> Array:
    r"""Solve $(m m^\top + \rho I)\,u = v$ in O(d) by the Sherman–Morrison formula.

    $$u = \frac{v}{\rho} - \frac{m\,(m^\top v)}{\rho^2 + \rho\,\lVert m\rVert^2}$$

    Args:
        m: the direction of the rank-one term, any shape, read as a flat vector.
        rho: the regulariser, > 0.
        v: the right-hand side, of the shape of `m`.

    Returns:
        `u`, of the shape and dtype of `v`.

    >>> rank_one_solve(np.array([1.0, 0.0]), 1.0, np.array([4.0, 4.0]))
    array([2., 4.])
    """
    mv, mm = float(np.vdot(m, v)), float(np.vdot(m, m))
    return v / rho - m * (mv / (rho**2 + rho * mm))
