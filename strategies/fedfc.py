"""DP-FedFC: the inverse of a noisy feature covariance as preconditioner."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from fedsofim.strategies.rule import Rule, ServerState

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require


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
    """

    setup_kind: ClassVar[str | None] = "covariance"
    gamma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.gamma < math.inf, f"gamma={self.gamma}: must be a finite number > 0")

    def init(self, theta: Array) -> FedFCBuffers:
        return FedFCBuffers(np.eye(theta.shape[-1], dtype=theta.dtype))

    def setup_shape(self, theta: Array) -> tuple[int, ...]:
        return (theta.shape[-1], theta.shape[-1])

    def set_up(self, state: ServerState, G: Array) -> ServerState:
        eigenvalues, Q = np.linalg.eigh(G.astype(np.float64))
        inverse = (Q / (np.maximum(eigenvalues, 0) + self.gamma)) @ Q.T
        return state._replace(buffers=FedFCBuffers(inverse.astype(state.theta.dtype)))

    def update(self, buffers: FedFCBuffers, G: Array, t: int) -> tuple[FedFCBuffers, Array]:
        return buffers, G @ buffers.inverse
