"""DP-FedGD: gradient descent on the aggregate."""

from dataclasses import dataclass
from typing import NamedTuple

from fedsofim.linalg import Array
from strategies.rule import Rule


class FedGDBuffers(NamedTuple):
    """DP-FedGD remembers nothing."""


@dataclass(frozen=True, kw_only=True)
class FedGD(Rule):
    r"""DP-FedGD, section 3.3 of the DP-FedSOFIM paper.

    $$\theta_{t+1} = \theta_t - \eta_t G_t$$

    References:
        McMahan et al. 2017, https://arxiv.org/abs/1602.05629;
        Abadi et al. 2016, https://arxiv.org/abs/1607.00133.
    """

    def init(self, theta: Array) -> FedGDBuffers:
        return FedGDBuffers()

    def update(self, buffers: FedGDBuffers, G: Array, t: int) -> tuple[FedGDBuffers, Array]:
        return buffers, G
