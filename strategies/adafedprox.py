"""DP-AdaFedProx: DP-FedAvg with a proximal pull that fades."""

import math
from dataclasses import dataclass

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.strategies.fedavg import FedAvg
from fedsofim.strategies.rule import ServerState


@dataclass(frozen=True, kw_only=True)
class AdaFedProx(FedAvg):
    r"""DP-AdaFedProx.

    DP-FedAvg in which a local step is also pulled back to the broadcast parameters, by
    $\mu_t\,(y - x)$ with $\mu_t = \max(\mu_0/\sqrt{t+1},\ 0.1\,\mu_0)$.

    Attributes:
        mu: the pull in the first round, $\mu_0$; 0 is DP-FedAvg.

    References:
        Li et al. 2020, https://arxiv.org/abs/1812.06127; Sahoo et al. 2024.

    >>> from fedsofim.core.rate import Rate
    >>> from fedsofim.strategies.rule import start
    >>> rule = AdaFedProx(rate=Rate(1.0), mu=0.01)
    >>> rule.broadcast(start(rule, np.zeros(2))._replace(t=3))["mu"].item()
    0.005
    """

    mu: float

    def __post_init__(self) -> None:
        require(0 <= self.mu < math.inf, f"mu={self.mu}: must be a finite number >= 0")

    def broadcast(self, state: ServerState) -> dict[str, Array]:
        # The weight of the proximal term, mu in Li et al., Eq. (2).
        mu_t = max(self.mu / math.sqrt(state.t + 1), 0.1 * self.mu)
        return {**super().broadcast(state), "mu": np.asarray(mu_t, state.theta.dtype)}
