"""Bad pairs of neighbours for what is released before the first round, and what is seen of them.

An adversary who knows D and D' projects a release on the difference of their sums, each number
weighed by its noise: no test of Gaussian noise does better. Over several stages such projections
add up, as their squares of mu do.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedsofim.clients.program import release_stage
from fedsofim.core.arrays import Array
from fedsofim.core.sums import Adjacency
from fedsofim.privacy.audit import Samples
from fedsofim.strategies.stage import Stage
from fedsofim.studies.audit_pair import CLASSES, FEATURES, Pair, of_records
from fedsofim.studies.audit_pair import Stage as Trial

SIZE = 2
# The other record is so many times as long: its norm is counted elsewhere.
LONGER = 8.0


def neighbours(other: Array, bound: float, adjacency: Adjacency) -> Pair:
    """Neighbours that differ in one record, its direction, length and class; or in its presence.

    Args:
        other: the direction of the other record; the one has the first axis.
        bound: what records are clipped to, which both exceed by far.
        adjacency: what neighbours are.
    """
    x = np.stack([np.eye(1, FEATURES)[0], LONGER * other]) * 1e3 * max(bound, 1.0)
    there = 0 if adjacency == "add-remove" else 1
    labels = [[k] * SIZE for k in range(2)]
    D = of_records(x[[0] * SIZE], labels[0], CLASSES, 1)
    return Pair(D, of_records(x[[there] * SIZE], labels[there], CLASSES, there))


def weights(stage: Stage, pair: Pair) -> Array:
    """What to multiply the numbers of a release with, and the sum over them of how far they are."""
    sums = (stage.summed(data, False) for data in pair)
    gaps = [(a.value - b.value) / np.square(a.bound) for a, b in zip(*sums, strict=True)]
    return np.concatenate([gap.ravel() for gap in gaps]).astype(np.float64)


def distance(stage: Stage, pair: Pair) -> float:
    """How far the sums of two neighbours are apart, each in its own bound."""
    sums = (stage.summed(data, False) for data in pair)
    gaps = [(a.value - b.value) / a.bound for a, b in zip(*sums, strict=True)]
    return math.sqrt(sum(float(np.vdot(gap, gap)) for gap in gaps))


def worst(stages: Sequence[Stage], adjacency: Adjacency) -> Pair:
    """The worse of two pairs for these stages: at a right angle, or opposite."""
    bound = max(stage.scale for stage in stages)
    first, second = np.eye(2, FEATURES)
    pairs = [neighbours(other, bound, adjacency) for other in (second, -first)]
    return max(pairs, key=lambda pair: math.hypot(*(distance(stage, pair) for stage in stages)))


def setup(trial: Trial, numbers: Sequence[int], trials: int) -> Samples:
    """What is seen of some stages together, under D and under D'.

    Args:
        trial: the run under audit.
        numbers: of the stages, -1 for the last.
        trials: how many a side.
    """
    plan, stages = trial.plan, [trial.config.stages[t] for t in numbers]
    pair = worst(stages, plan.adjacency)
    clients = trial.clients(pair, trials)
    shown = np.zeros((2 * trials, 1))
    for t, stage in zip(numbers, stages, strict=True):
        released = release_stage(stage, t, clients, {}, plan, trial.noise_of(t))
        z = plan.stage_multiplier(t, stage.unit_sensitivity(plan.adjacency))
        seen = released.astype(np.float64) @ weights(stage, pair) * SIZE / z**2
        shown += trial.together(seen[:, None])
    return Samples(shown[:trials], shown[trials:], np.zeros((1, 1)))
