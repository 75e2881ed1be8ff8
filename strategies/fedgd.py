"""DP-FedGD: gradient descent on the aggregate."""

from dataclasses import dataclass

from fedsofim.strategies.rule import Nothing, Rule

from fedsofim.core.arrays import Array


@dataclass(frozen=True, kw_only=True)
class FedGD(Rule):
    r"""DP-FedGD, section 3.3 of the DP-FedSOFIM paper.

    $$\theta_{t+1} = \theta_t - \eta_t G_t$$

    References:
        McMahan et al. 2017, https://arxiv.org/abs/1602.05629;
        Abadi et al. 2016, https://arxiv.org/abs/1607.00133.
    """

    def init(self, theta: Array) -> Nothing:
        return Nothing()

    def update(self, buffers: Nothing, G: Array, t: int) -> tuple[Nothing, Array]:
        return buffers, G
