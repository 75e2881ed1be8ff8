"""DP-FedAdam and DP-FedYogi: per-coordinate learning rates on the server."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.rate import Rate
from fedsofim.strategies.rule import Rule


class AdaptiveBuffers(NamedTuple):
    """Moving averages of the aggregates and of their squares."""

    m: Array
    v: Array


@dataclass(frozen=True, kw_only=True)
class FedAdam(Rule):
    r"""DP-FedAdam: Adam on the aggregate, which is post-processing.

    $$m = \beta_1 m + (1-\beta_1) G \qquad v = \beta_2 v + (1-\beta_2) G^2$$
    $$\theta \leftarrow \theta - \eta\,\hat m / (\sqrt{\hat v} + \tau)$$

    with $\hat m = m/(1-\beta_1^{t+1})$ and $\hat v = v/(1-\beta_2^{t+1})$.

    Attributes:
        beta1: decay of m, in [0, 1).
        beta2: decay of v, in [0, 1).
        tau: keeps the denominator away from zero, > 0.

    Bias correction is Kingma & Ba's; Reddi et al. have none.

    References:
        Reddi et al. 2020, https://arxiv.org/abs/2003.00295.

    >>> rule = FedAdam(rate=Rate(0.1), beta1=0.9, beta2=0.99, tau=1e-8)
    >>> rule.update(rule.init(np.zeros(2)), np.array([3.0, -5.0]), t=0, rounds=70)[1].round(6)
    array([ 0.1, -0.1])
    """

    rate: Rate
    beta1: float
    beta2: float
    tau: float

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            beta = getattr(self, name)
            require(0 <= beta < 1, f"{name}={beta}: must be at least 0 and below 1")
        require(self.tau > 0, f"tau={self.tau}: must be > 0")

    def describe(self, buffers: AdaptiveBuffers, t: int) -> dict[str, float]:
        scale = np.sqrt(buffers.v / (1 - self.beta2 ** (t + 1))) + self.tau
        norm = float(np.linalg.norm(buffers.m))
        return {"momentum_norm": norm, "condition": float(scale.max() / scale.min())}

    def init(self, theta: Array) -> AdaptiveBuffers:
        return AdaptiveBuffers(np.zeros_like(theta), np.zeros_like(theta))

    def update(
        self, buffers: AdaptiveBuffers, G: Array, t: int, rounds: int
    ) -> tuple[AdaptiveBuffers, Array]:
        m = self.beta1 * buffers.m + (1 - self.beta1) * G  # Reddi et al., Algorithm 2
        v = self._second_moment(buffers.v, G)
        m_hat = m / (1 - self.beta1 ** (t + 1))
        v_hat = v / (1 - self.beta2 ** (t + 1))
        return AdaptiveBuffers(m, v), self.rate.at(t, rounds) * (
            m_hat / (np.sqrt(v_hat) + self.tau)
        )

    def _second_moment(self, v: Array, G: Array) -> Array:
        return self.beta2 * v + (1 - self.beta2) * G**2  # Algorithm 2, "FedAdam"


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    r"""DP-FedYogi: Adam whose second moment changes by an amount that does not depend on itself.

    $$v = v - (1-\beta_2)\,G^2 \operatorname{sign}(v - G^2), \qquad v_{-1} = \tau^2$$

    References:
        Reddi et al. 2020, https://arxiv.org/abs/2003.00295.
    """

    def init(self, theta: Array) -> AdaptiveBuffers:
        return AdaptiveBuffers(np.zeros_like(theta), np.full_like(theta, self.tau**2))

    def _second_moment(self, v: Array, G: Array) -> Array:
        # Algorithm 2, "FedYogi".
        return np.asarray(v - (1 - self.beta2) * G**2 * np.sign(v - G**2))
