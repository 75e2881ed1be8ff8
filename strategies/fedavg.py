"""DP-FedAvg: a server step on the mean of the clients' drifts."""

from dataclasses import dataclass
from typing import ClassVar

from fedsofim.strategies.fedgd import FedGD


@dataclass(frozen=True, kw_only=True)
class FedAvg(FedGD):
    r"""DP-FedAvg.

    Clients take K clipped, noisy steps from $\theta_t$ and send their drifts $x - y_K$, whose
    aggregate is G:

    $$\theta_{t+1} = \theta_t - \eta_s G_t$$

    With K = 1 and client learning rate a it is DP-FedGD with learning rate $a\,\eta_s$. Every local
    step is charged: R = T K releases.

    References:
        McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.

    >>> import numpy as np
    >>> from fedsofim.core.rate import Rate
    >>> rule = FedAvg(rate=Rate(1.0))
    >>> rule.update(rule.init(np.zeros(2)), np.array([0.5, 0.25]), t=0, rounds=70)[1]
    array([0.5 , 0.25])
    """

    client: ClassVar[str | type] = "steps"
