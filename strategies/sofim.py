"""DP-FedSOFIM: a rank-one Fisher preconditioner from the server's momentum."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.linalg import rank_one_solve
from fedsofim.core.rate import Rate
from fedsofim.strategies.rule import Descent, Rule


class SofimBuffers(NamedTuple):
    """The exponential moving average of the aggregates, M in the paper."""

    M: Array


@dataclass(frozen=True, kw_only=True)
class Sofim(Rule):
    r"""DP-FedSOFIM, Algorithm 1.

    $$M_t = \beta M_{t-1} + (1-\beta) G_t \qquad \hat M_t = M_t / (1 - \beta^{t+1})$$
    $$\theta_{t+1} = \theta_t - \eta_t\,(\hat M_t \hat M_t^\top + \rho I)^{-1} \hat M_t$$

    The inverse is applied by Sherman–Morrison in O(d). It is built from released aggregates only,
    so the step is post-processing and its privacy is that of DP-FedGD.

    Attributes:
        rho: regulariser of the Fisher proxy, > 0.
        beta: decay of the moving average, in [0, 1).
        bias_correction: whether M is divided by $1 - \beta^{t+1}$.
        direction: what the preconditioner is applied to. `momentum` ($H\hat M$) is what the
            authors' code computes and what gives the paper's figures; `gradient` ($HG$) is what
            the paper's text says, and wants smaller steps.
        precondition: `false` leaves out the preconditioner, the paper's EMA-only ablation; with
            `beta=0` as well it is Grad-only, which is DP-FedGD.
        warmup: for this many rounds the step is $\hat M$, without the preconditioner.
        warm_start: over this many rounds the preconditioner fades in (section 3.4.3):
            $(1-\lambda_t)\,v/\rho + \lambda_t H v$ with $\lambda_t$ rising from 0 to 1.

    References:
        Nair et al. 2026, https://arxiv.org/abs/2601.09166.

    >>> rule = Sofim(rate=Rate(1.0), rho=0.5, beta=0.0)
    >>> rule.update(rule.init(np.zeros(2)), np.array([3.0, 4.0]), t=0, rounds=70)[1] * 25.5
    array([3., 4.])
    """

    rate: Rate
    rho: float
    beta: float
    bias_correction: bool = False
    direction: Literal["momentum", "gradient"] = "momentum"
    precondition: bool = True
    warmup: int = 0
    warm_start: int = 0

    def __post_init__(self) -> None:
        require(self.rho > 0, f"rho={self.rho}: must be > 0")
        require(0 <= self.beta < 1, f"beta={self.beta}: must be at least 0 and below 1")
        require(self.warmup >= 0, f"warmup={self.warmup}: must be >= 0")
        require(self.warm_start >= 0, f"warm_start={self.warm_start}: must be >= 0")

    @property
    def descent(self) -> Descent:
        gone = {
            "the step is H M, not H G (strategy.direction=momentum)": self.direction == "momentum",
            "there is no preconditioner": not self.precondition,
            f"the first {self.warmup} steps have no preconditioner": self.warmup > 0,
            f"the preconditioner fades in over {self.warm_start} rounds": self.warm_start > 0,
            "M is divided by 1 - beta^(t+1), and so may exceed its bound": self.bias_correction,
        }
        departures = tuple(why for why, holds in gone.items() if holds)
        return Descent(self.rho, self.beta, coupled=True, departures=departures)

    def describe(self, buffers: SofimBuffers, t: int) -> dict[str, float]:
        M = self._corrected(buffers.M, t)
        size = float((M.astype(np.float64) ** 2).sum())
        lam = self._share(t)
        # Lemma 4.14: H has the eigenvalues 1 / rho and, along M, 1 / (rho + |M|^2).
        along = (1 - lam) / self.rho + lam / (self.rho + size)
        return {"momentum_norm": size**0.5, "condition": 1 / (self.rho * along)}

    def init(self, theta: Array) -> SofimBuffers:
        return SofimBuffers(np.zeros_like(theta))  # M_{-1} = 0; Algorithm 1, line 2

    def update(
        self, buffers: SofimBuffers, G: Array, t: int, rounds: int
    ) -> tuple[SofimBuffers, Array]:
        M = self.beta * buffers.M + (1 - self.beta) * G  # Algorithm 1, line 12
        M_hat = self._corrected(M, t)
        step = self.rate.at(t, rounds) * self._precondition(M_hat, G, t)  # Algorithm 1, line 14
        return SofimBuffers(M), step

    def _corrected(self, M: Array, t: int) -> Array:
        return M / (1 - self.beta ** (t + 1)) if self.bias_correction else M

    def _share(self, t: int) -> float:
        """How far the preconditioner has come in, lambda_t."""
        if not self.precondition or t < self.warmup:
            return 0.0
        return min(1.0, t / self.warm_start) if self.warm_start else 1.0

    def _precondition(self, M_hat: Array, G: Array, t: int) -> Array:
        if not self.precondition or t < self.warmup:
            return M_hat
        v = M_hat if self.direction == "momentum" else G
        Hv = rank_one_solve(M_hat, self.rho, v)  # Eq. (12); Algorithm 1, line 13
        lam = self._share(t)
        # Section 3.4.3, "Warm-started preconditioning".
        return Hv if lam == 1.0 else (1 - lam) * v / self.rho + lam * Hv
