"""Ditto: FedAvg, and beside it a model of each client's own."""

from dataclasses import dataclass
from typing import ClassVar

from fedsofim.strategies.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    r"""Ditto, plain or private.

    The server's part is FedAvg's, $\theta_{t+1} = \theta_t - \eta_s G_t$. Clients train a model of
    their own beside the common one, which pulls it (`clients.ditto.Ditto`); it never leaves them.

    References:
        Li et al. 2021, https://arxiv.org/abs/2012.04221, Algorithm 1.

    >>> import numpy as np
    >>> from fedsofim.core.rate import Rate
    >>> rule = Ditto(rate=Rate(1.0))
    >>> rule.update(rule.init(np.zeros(2)), np.array([0.5, 0.25]), t=0, rounds=70)[1]
    array([0.5 , 0.25])
    """

    client: ClassVar[str | type] = "ditto"
