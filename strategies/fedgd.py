"""DP-FedGD: gradient descent on the aggregate."""

from dataclasses import dataclass

from fedsofim.core.arrays import Array
from fedsofim.core.rate import Rate
from fedsofim.strategies.rule import Descent, Empty, Rule


@dataclass(frozen=True, kw_only=True)
class FedGD(Rule):
    r"""DP-FedGD, section 3.3 of the DP-FedSOFIM paper.

    $$\theta_{t+1} = \theta_t - \eta_t G_t$$

    References:
        McMahan et al. 2017, https://arxiv.org/abs/1602.05629;
        Abadi et al. 2016, https://arxiv.org/abs/1607.00133.

    >>> import numpy as np
    >>> _, step = FedGD(rate=Rate(0.1)).update(Empty(), np.array([1.0, -2.0]), t=0, rounds=70)
    >>> step
    array([ 0.1, -0.2])
    """

    rate: Rate

    @property
    def descent(self) -> Descent:
        return Descent()  # Lemma 4.25

    def describe(self, buffers: Empty, t: int) -> dict[str, float]:
        return {"condition": 1.0}

    def init(self, theta: Array) -> Empty:
        return Empty()

    def update(self, buffers: Empty, G: Array, t: int, rounds: int) -> tuple[Empty, Array]:
        return buffers, self.rate.at(t, rounds) * G  # section 3.3, "Server aggregation"
