"""DP-FedFC: the inverse of a noisy feature covariance as preconditioner."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from fedsofim.strategies.rule import Rule, ServerState

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.rate import Rate


class FedFCBuffers(NamedTuple):
    """The preconditioner $C^{-1}$, `(F+1, F+1)`."""

    inverse: Array


@dataclass(frozen=True, kw_only=True)
class FedFC(Rule):
    r"""DP-FedFC.

    Once, $C = \operatorname{mean}_i C_i + \gamma I$ from the clients' noisy covariances; then
    $\theta \leftarrow \theta - \eta\,G\,C^{-1}$. Noise can push eigenvalues below zero: they are
    set to zero before $\gamma$ is added.

    Attributes:
        gamma: what is added to the covariance's eigenvalues, > 0.

    References:
        Krouka et al. 2025.

    >>> from fedsofim.strategies.rule import start
    >>> rule = FedFC(rate=Rate(1.0), gamma=1.0)
    >>> state = rule.set_up(start(rule, np.zeros((1, 2))), np.diag([3.0, -2.0]))
    >>> rule.update(state.buffers, np.ones((1, 2)), t=0, rounds=70)[1]
    array([[0.25, 1.  ]])
    """

    client: ClassVar[str | type] = "covariance"
    setup_kind: ClassVar[str | None] = "covariance"
    rate: Rate
    gamma: float

    def __post_init__(self) -> None:
        require(0 < self.gamma < math.inf, f"gamma={self.gamma}: must be a finite number > 0")

    def init(self, theta: Array) -> FedFCBuffers:
        return FedFCBuffers(np.eye(theta.shape[-1], dtype=theta.dtype))

    def setup_shape(self, theta: Array) -> tuple[int, ...]:
        return (theta.shape[-1], theta.shape[-1])

    def set_up(self, state: ServerState, G: Array) -> ServerState:
        eigenvalues, Q = np.linalg.eigh(G.astype(np.float64))
        inverse = (Q / (np.maximum(eigenvalues, 0) + self.gamma)) @ Q.T
        return state._replace(buffers=FedFCBuffers(inverse.astype(state.theta.dtype)))

    def update(
        self, buffers: FedFCBuffers, G: Array, t: int, rounds: int
    ) -> tuple[FedFCBuffers, Array]:
        return buffers, self.rate.at(t, rounds) * (G @ buffers.inverse)
