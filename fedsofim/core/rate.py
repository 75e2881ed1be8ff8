"""A learning rate and how it falls over the rounds; methods that take steps hold one."""

import math
from dataclasses import dataclass
from typing import Literal

from fedsofim.core.errors import require
from fedsofim.core.settings import Inline


@dataclass(frozen=True)
class Rate(Inline):
    r"""A learning rate.

    Attributes:
        lr: the learning rate $\eta_0$.
        schedule: how the rate falls over the run: not at all, linearly or as a half cosine to zero,
            or as $1/\sqrt{t+1}$.

    >>> [Rate(2.0, "linear").at(t, rounds=4) for t in range(4)]
    [2.0, 1.5, 1.0, 0.5]
    """

    lr: float
    schedule: Literal["constant", "linear", "cosine", "inverse-sqrt"] = "constant"

    def __post_init__(self) -> None:
        require(0 < self.lr < math.inf, f"lr={self.lr}: must be a finite number > 0")

    def at(self, t: int, rounds: int) -> float:
        r"""The learning rate $\eta_t$ of round `t` (from 0) of `rounds`."""
        if self.schedule == "linear":
            return self.lr * (1 - t / rounds)
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * t / rounds))
        if self.schedule == "inverse-sqrt":
            return self.lr / math.sqrt(t + 1)
        return self.lr
