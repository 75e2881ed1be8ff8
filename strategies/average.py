"""Averages of the last iterates: free post-processing of what was released.

What is evaluated and written is the average; training goes on from the iterate itself.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.strategies.rule import Empty, ServerState, for_raw

Average = Literal["none", "tail", "ema"]
# What of an exponential average a round keeps.
DECAY = 0.8


class Averaged(NamedTuple):
    """A weighted sum of iterates, in float64, and of their weights; zero before the first."""

    total: Array
    weight: float


def blank(how: Average, theta: Array) -> Averaged | Empty:
    """The average before the first round."""
    return Empty() if how == "none" else Averaged(np.zeros(theta.shape), 0.0)


def averaged(how: Average, state: ServerState, rounds: int) -> ServerState:
    r"""The state after a round, its iterate counted in.

    `tail` is the mean of the last quarter of the rounds, and until then the iterate itself. `ema`
    is $m_t = .8\,m_{t-1} + .2\,\theta_t$ over what the weights add up to, so zeros count nothing.
    """
    if how == "none" or state.t <= 0:
        return state
    kept, part = (DECAY, 1 - DECAY) if how == "ema" else (1.0, 1.0)
    if how == "tail":
        first = rounds - math.ceil(rounds / 4) + 1
        part = float(state.t >= first)
        kept = float(state.t > first)  # a run that was extended begins its tail anew
    total = kept * state.average.total + part * state.theta.astype(np.float64)
    weight = kept * state.average.weight + part
    return state._replace(average=Averaged(total, weight))


def model_of(state: ServerState) -> Array:
    """The model for records as they are: of the average, or of the iterate where there is none."""
    theta, average = state.theta, state.average
    if isinstance(average, Averaged) and average.weight:
        theta = np.asarray(average.total / average.weight).astype(theta.dtype)
    return for_raw(theta, state.shared)
