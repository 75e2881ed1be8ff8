"""DP-FedFC: the inverse of a noisy feature covariance as preconditioner."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.rate import Rate
from fedsofim.core.sums import Adjacency, BoundedSum
from fedsofim.models.head import features_of
from fedsofim.models.moments import Features
from fedsofim.models.records import Records
from fedsofim.strategies.rule import Rule, ServerState
from fedsofim.strategies.stage import (
    Stage,
    acute_sensitivity,
    check_radius,
    symmetric,
    triangle,
)


class FedFCBuffers(NamedTuple):
    """The preconditioner $C^{-1}$, `(F+1, F+1)`."""

    inverse: Array


@dataclass(frozen=True, kw_only=True)
class SecondMoment(Stage):
    r"""What DP-FedFC's clients send once: $\sum\tilde x\tilde x^\top$, records clipped to norm B.

    One record moves it by at most $\sqrt2\,B^2$ when replaced, $B^2$ when added or removed.

    Attributes:
        bound: B.
        gamma: what is added to the eigenvalues before the inverse is taken.
    """

    name: ClassVar[str] = "second moment"
    bound: float
    gamma: float

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"P"})

    @property
    def scale(self) -> float:
        return self.bound**2

    def length(self, features: int, classes: int) -> int:
        return (features + 1) * (features + 2) // 2

    def unit_sensitivity(self, adjacency: Adjacency) -> float:
        return acute_sensitivity(adjacency)

    def summed(self, records: Records | Features, exact: bool) -> tuple[BoundedSum, ...]:
        return triangle(features_of(records).second_moment(self.bound, exact, bias=True))

    def fold(self, state: ServerState, G: Array, std: float) -> ServerState:
        eigenvalues, Q = np.linalg.eigh(symmetric(G, state.theta.shape[-1]))
        inverse = (Q / (np.maximum(eigenvalues, 0) + self.gamma)) @ Q.T
        return state._replace(buffers=FedFCBuffers(inverse.astype(state.theta.dtype)))


@dataclass(frozen=True, kw_only=True)
class FedFC(Rule):
    r"""DP-FedFC.

    Once, $C = \operatorname{mean}_i C_i + \gamma I$ from the clients' noisy covariances; then
    $\theta \leftarrow \theta - \eta\,G\,C^{-1}$. Noise can push eigenvalues below zero: they are
    set to zero before $\gamma$ is added.

    Attributes:
        gamma: what is added to the covariance's eigenvalues, > 0.
        bound: the largest norm of a record's features with the bias, B.
        setup_share: the part of the budget, of $\mu^2$, that the covariance spends.

    References:
        Krouka et al. 2025.

    >>> from fedsofim.strategies.rule import start
    >>> rule = FedFC(rate=Rate(1.0), gamma=1.0)
    >>> (stage,) = rule.stages
    >>> state = stage.fold(start(rule, np.zeros((1, 2))), np.array([3.0, -2.0, 0.0]), 0.0)
    >>> rule.update(state.buffers, np.ones((1, 2)), t=0, rounds=70)[1]
    array([[0.25, 1.  ]])
    """

    rate: Rate
    gamma: float
    bound: float = 5.0
    setup_share: float = 0.05

    def __post_init__(self) -> None:
        require(0 < self.gamma < math.inf, f"gamma={self.gamma}: must be a finite number > 0")
        check_radius("bound", self.bound)
        share = self.setup_share
        require(0 < share < 1, f"setup_share={share}: must be between 0 and 1")

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (SecondMoment(share=self.setup_share, bound=self.bound, gamma=self.gamma),)

    def describe(self, buffers: FedFCBuffers, t: int) -> dict[str, float]:
        return {"condition": float(np.linalg.cond(buffers.inverse.astype(np.float64)))}

    def init(self, theta: Array) -> FedFCBuffers:
        return FedFCBuffers(np.eye(theta.shape[-1], dtype=theta.dtype))

    def update(
        self, buffers: FedFCBuffers, G: Array, t: int, rounds: int
    ) -> tuple[FedFCBuffers, Array]:
        return buffers, self.rate.at(t, rounds) * (G @ buffers.inverse)
