"""The few pieces of linear algebra that the methods share."""

import numpy as np

from fedsofim.core.arrays import Array


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
    m_, v_ = m.astype(np.float64), v.astype(np.float64)  # where m is large, the terms cancel
    mv, mm = float(np.vdot(m_, v_)), float(np.vdot(m_, m_))
    return (v_ / rho - m_ * (mv / (rho**2 + rho * mm))).astype(v.dtype)


def inverse_root(
    covariance: Array, damping: float, floor: float = 0.0, least: float = 0.0
) -> Array:
    r"""The symmetric $U = (C + \gamma I)^{-1/2}$, so that $UCU$ is the identity up to damping.

    Args:
        covariance: C, symmetric, `(d, d)`; rounding may have made eigenvalues slightly negative.
            Or a diagonal, `(d,)`.
        damping: $\gamma$ over the largest eigenvalue, > 0.
        floor: eigenvalues are raised to this part of the largest before damping.
        least: if above 0, the damping is $\gamma$ itself, and at least this part of the largest.

    Returns:
        `U`, of the shape of C, float64; the identity for a covariance of zeros.

    >>> inverse_root(np.diag([4.0, 1.0]), damping=1e-12).round(6)
    array([[0.5, 0. ],
           [0. , 1. ]])
    """
    C = covariance.astype(np.float64)
    eigenvalues, Q = (C, None) if C.ndim == 1 else np.linalg.eigh((C + C.T) / 2)
    largest = eigenvalues.max()
    if largest <= 0:
        return np.ones(len(C)) if Q is None else np.eye(len(C))
    gamma = max(damping, least * largest) if least else damping * largest
    raised = np.maximum(eigenvalues, floor * largest) + gamma
    return np.asarray(1 / np.sqrt(raised) if Q is None else (Q / np.sqrt(raised)) @ Q.T)
