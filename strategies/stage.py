"""A release before the first round: a bounded sum, what it may spend, and what the server makes."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.sums import Adjacency, BoundedSum
from fedsofim.models.moments import Features
from fedsofim.models.records import Records
from fedsofim.strategies.aggregation import Aggregation, noise_gain
from fedsofim.strategies.rule import ServerState


@dataclass(frozen=True, kw_only=True)
class Stage(ABC):
    r"""One release before the first round.

    A run has S of them, numbered $t = -S, \dots, -1$. Clients send their noisy sums over their
    sizes, the server aggregates them as it does gradients, and folds the result into its state.

    Attributes:
        name: for people.
        share: the part of the budget, of $\mu^2$, that it spends.
    """

    name: ClassVar[str]
    share: float

    def __post_init__(self) -> None:
        require(0 < self.share < 1, f"share={self.share}: must be between 0 and 1")

    @property
    def reads(self) -> frozenset[str]:
        """What clients must be sent for it, of what all of them share; nothing by default."""
        return frozenset()

    @property
    @abstractmethod
    def scale(self) -> float:
        """The bound of the first of its sums: the noise's std over the multiplier."""

    @abstractmethod
    def length(self, features: int, classes: int) -> int:
        """How many numbers a client sends."""

    @abstractmethod
    def unit_sensitivity(self, adjacency: Adjacency) -> float:
        """How far one record moves all sums together, each measured in its own bound."""

    @abstractmethod
    def summed(self, records: Records | Features, exact: bool) -> tuple[BoundedSum, ...]:
        """What a client sends, before the noise: flat sums, one after another.

        Args:
            records: of one client, or their features; mapped if the stage reads a map.
            exact: whether they must be sums of integers.
        """

    @abstractmethod
    def fold(self, state: ServerState, G: Array, std: float) -> ServerState:
        """The server's state with what was released; post-processing, so it costs nothing.

        Args:
            state: before.
            G: the aggregate, flat.
            std: of the noise on a coordinate of the first sum in it.
        """


class StageNoise(Protocol):
    """What is known of a plan."""

    @property
    def adjacency(self) -> Adjacency:
        """What may change about a record."""

    def stage_multiplier(self, t: int, unit_sensitivity: float) -> float:
        """The noise that one client adds in stage `t`, over the bound of a sum."""


def stage_std(stage: Stage, t: int, plan: StageNoise, sizes: Array, how: Aggregation) -> float:
    """The std of the noise on a coordinate of the first sum of a stage, in the aggregate."""
    z = plan.stage_multiplier(t, stage.unit_sensitivity(plan.adjacency))
    return z * stage.scale * noise_gain(sizes, how)


def check_radius(name: str, radius: float) -> None:
    """Refuse a bound that float32 does not hold well."""
    require(1e-6 <= radius <= 1e6, f"{name}={radius}: must be between 1e-6 and 1e6")


def acute_sensitivity(adjacency: Adjacency) -> float:
    r"""Of a sum of contributions of norm at most 1, no two of which have a negative inner product.

    $|a - b|^2 = |a|^2 + |b|^2 - 2a^\top b \le 2$, and $|a| \le 1$. So are features that are not
    negative, second moments, for $\langle cc^\top, dd^\top\rangle = (c^\top d)^2$, and counts.
    """
    return math.sqrt(2) if adjacency == "replace-one" else 1.0


def triangle(S: BoundedSum) -> tuple[BoundedSum, BoundedSum]:
    r"""The diagonal of a symmetric sum, and what is above it, which needs less noise.

    Above the diagonal, $\sum_{i<j} c_i^2c_j^2 \le R^4/2$: the bound is $R^2/\sqrt2$. With noise in
    proportion to the bounds, both together cost $D_{ii}^2/s^2 + D_{ij}^2/(s^2/2)$, summed over i
    and i < j, which is $|D|_F^2/s^2$: that of the whole matrix, as if nothing were sent twice.
    """
    above = S.value.take(_above(len(S.value)))
    return (
        BoundedSum(np.diagonal(S.value).copy(), S.bound, S.unit),
        BoundedSum(above, S.bound / math.sqrt(2), S.unit),
    )


@lru_cache(maxsize=4)
def _above(width: int) -> Array:
    """Where a flat matrix is above its diagonal; kept, since every client asks."""
    return np.flatnonzero(np.triu(np.ones((width, width)), 1))


def symmetric(flat: Array, width: int) -> Array:
    """The matrix whose diagonal and upper triangle were sent one after the other, in float64.

    >>> symmetric(np.array([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 3.0], [3.0, 2.0]]
    """
    S = np.zeros((width, width))
    S.flat[_above(width)] = flat[width:]
    return np.asarray(S + S.T + np.diag(flat[:width].astype(np.float64)))
