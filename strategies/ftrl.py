"""DP-FTRL: gradient descent on prefix sums whose noise comes from a tree."""

import math
from dataclasses import dataclass
from typing import ClassVar

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.strategies.rule import Empty, Rule


@dataclass(frozen=True, kw_only=True)
class FTRL(Rule):
    r"""DP-FTRL without momentum.

    $$\theta_t = \theta_0 - \eta \sum_{s<t} G_s$$

    Each step adds G to the running sum; the clients' noise is correlated so that it cancels there,
    which is all that differs from DP-FedGD. It does so only if every G weighs the same: the
    learning rate is constant.

    Attributes:
        lr: the learning rate $\eta$, the same in all rounds.

    References:
        Kairouz et al. 2021, https://arxiv.org/abs/2103.00039.

    >>> import numpy as np
    >>> FTRL(lr=0.5).update(Empty(), np.array([1.0, -2.0]), t=69, rounds=70)[1]
    array([ 0.5, -1. ])
    """

    client: ClassVar[str | type] = "tree"
    lr: float

    def __post_init__(self) -> None:
        require(0 < self.lr < math.inf, f"lr={self.lr}: must be a finite number > 0")

    def init(self, theta: Array) -> Empty:
        return Empty()

    def update(self, buffers: Empty, G: Array, t: int, rounds: int) -> tuple[Empty, Array]:
        # Kairouz et al., Algorithm 1, as the difference of two successive prefix sums.
        return buffers, self.lr * G
