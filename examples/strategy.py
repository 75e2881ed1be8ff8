"""A server rule of your own: steps along the signs of the aggregate.

fedsofim run strategy=strategy:SignDescent strategy.lr=0.01
"""

from dataclasses import dataclass

import numpy as np
from fedsofim.core.arrays import Array
from fedsofim.core.rate import Rate
from fedsofim.strategies.rule import Empty, Rule


@dataclass(frozen=True, kw_only=True)
class SignDescent(Rule):
    """Every parameter moves by the learning rate, in the direction of the aggregate's sign."""

    rate: Rate  # the keys strategy.lr and strategy.schedule

    def init(self, theta: Array) -> Empty:
        return Empty()

    def update(self, buffers: Empty, G: Array, t: int, rounds: int) -> tuple[Empty, Array]:
        return buffers, self.rate.at(t, rounds) * np.sign(G)
