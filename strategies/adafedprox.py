"""DP-AdaFedProx: DP-FedAvg with a proximal pull that fades."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.strategies.fedavg import FedAvg
from fedsofim.strategies.rule import Empty, ServerState


class Squares(NamedTuple):
    """The mean square of each coordinate of the drift so far."""

    v: Array


@dataclass(frozen=True, kw_only=True)
class AdaFedProx(FedAvg):
    r"""DP-AdaFedProx.

    DP-FedAvg in which a local step is also pulled back to the broadcast parameters, by
    $\mu_t\,(y - x)$ with $\mu_t = \max(\mu_0/\sqrt{t+1},\ 0.1\,\mu_0)$.

    The DP-FedSOFIM paper's text says that it also adapts a learning rate for each coordinate, and
    gives no formula; its authors' code does not. With `per_coordinate` the server does so, from
    released drifts alone, with the mean square $v_j$ of each coordinate's drift so far:

    $$\eta_j = \eta\,\frac{2}{1 + \sqrt{v_j/\bar v}}$$

    so that coordinates that move alike keep the rate $\eta$.

    Attributes:
        mu: the pull in the first round, $\mu_0$; 0 is DP-FedAvg.
        per_coordinate: whether each coordinate has a rate of its own.

    References:
        Li et al. 2020, https://arxiv.org/abs/1812.06127; Sahoo et al. 2024.

    >>> from fedsofim.core.rate import Rate
    >>> from fedsofim.strategies.rule import start
    >>> rule = AdaFedProx(rate=Rate(1.0), mu=0.01)
    >>> rule.broadcast(start(rule, np.zeros(2))._replace(t=3))["mu"].item()
    0.005
    >>> rule = AdaFedProx(rate=Rate(1.0), mu=0.01, per_coordinate=True)
    >>> rule.update(rule.init(np.zeros(2)), np.array([0.0, 1.0]), t=0, rounds=70)[1].round(3)
    array([0.   , 0.828])
    """

    mu: float
    per_coordinate: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.mu < math.inf, f"mu={self.mu}: must be a finite number >= 0")

    def broadcast(self, state: ServerState) -> dict[str, Array]:
        # The weight of the proximal term, mu in Li et al., Eq. (2).
        mu_t = max(self.mu / math.sqrt(state.t + 1), 0.1 * self.mu)
        return {**super().broadcast(state), "mu": np.asarray(mu_t, state.theta.dtype)}

    def init(self, theta: Array) -> Squares | Empty:  # type: ignore[override]
        return Squares(np.zeros_like(theta)) if self.per_coordinate else Empty()

    def update(self, buffers: Any, G: Array, t: int, rounds: int) -> tuple[Any, Array]:
        if not self.per_coordinate:
            return super().update(buffers, G, t, rounds)
        v = buffers.v + (G**2 - buffers.v) / (t + 1)
        mean = max(float(v.mean()), float(np.finfo(G.dtype).tiny))
        return Squares(v), self.rate.at(t, rounds) * 2 * G / (1 + np.sqrt(v / mean))
