r"""What norm records usually have, where nothing public tells: a small release, charged as any.

A clip radius that is read off the records would be a release for free. Here clients count how many
of their records have a norm in each of `BINS` ranges, a factor of $\sqrt2$ apart and the same for
everybody; the noisy counts tell where most norms are, and records are scaled so that this is 1.
Later stages then clip at 1.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.sums import Adjacency, BoundedSum
from fedsofim.models.head import features_of
from fedsofim.models.moments import BINS, FIRST, Features
from fedsofim.models.records import Records
from fedsofim.strategies.rule import ServerState
from fedsofim.strategies.stage import Stage, acute_sensitivity
from fedsofim.transforms.stages import affine, then

# Norms are looked for within a factor of four: so many bins together carry more than noise.
WINDOW = 4


def usual_norm(parts: Array) -> float:
    """The median norm in the fullest window of bins.

    A median of all bins would add up the noise of all of them, most of which are empty.

    Args:
        parts: which part of the records has its norm in each bin, `(BINS,)`, with noise.

    >>> parts = np.zeros(BINS)
    >>> parts[-FIRST : -FIRST + 2] = 0.5  # between 1 and the root of 2, and from there to 2
    >>> round(usual_norm(parts), 4)
    1.4142
    """
    start = int(np.convolve(parts, np.ones(WINDOW), "valid").argmax())
    inside = np.maximum(parts[start : start + WINDOW], 1e-12)
    below = np.concatenate([[0.0], np.cumsum(inside)])
    place = float(np.interp(below[-1] / 2, below, np.arange(WINDOW + 1)))
    return math.exp2((FIRST + start + place) / 2)


@dataclass(frozen=True, kw_only=True)
class Norms(Stage):
    r"""How many records have a norm in each range.

    A record adds 1 to one count, or to none if its norm is 0 or not finite. So its contribution is
    a unit vector or zero, no two have a negative inner product, and replacing a record moves the
    counts by at most $\sqrt2$, adding or removing one by 1 (`acute_sensitivity`). That holds for
    any map that the server may send before.

    Attributes:
        root: whether records are scaled to the root of F, for training; else to 1.
    """

    name: ClassVar[str] = "norms"
    root: bool = False

    @property
    def scale(self) -> float:
        return 1.0

    def length(self, features: int, classes: int) -> int:
        return BINS

    def unit_sensitivity(self, adjacency: Adjacency) -> float:
        return acute_sensitivity(adjacency)

    def summed(self, records: Records | Features, exact: bool) -> tuple[BoundedSum, ...]:
        return (features_of(records).norm_counts(exact),)

    def fold(self, state: ServerState, G: Array, std: float) -> ServerState:
        F = len(state.shared.P) - 1
        size = (math.sqrt(F) if self.root else 1.0) / usual_norm(G.astype(np.float64))
        return then(state, affine(size * np.eye(F), np.zeros(F)))


@dataclass(frozen=True, kw_only=True)
class CentredNorms(Norms):
    """The same of records that were centred by the mean that was released before."""

    name: ClassVar[str] = "centred norms"

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"P"})
