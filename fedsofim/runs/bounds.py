r"""The paper's convergence bounds as numbers: Theorems 4.21, 4.26, 4.29 and 4.31.

All follow from one step. With $c = 1/\rho - (\tau_1+\tau_2)/2$ (Eq. 17),

$$E[F(\theta_{t+1})] \le E[F(\theta_t)] - \eta c\,E\lVert\nabla F(\theta_t)\rVert^2 + \Gamma,$$

and where $\lVert\nabla F\rVert^2 \ge 2\mu(F - F^\star)$ the gap shrinks by
$r = 1 - 2\mu\eta c$ a round, down to the floor $\Gamma/(2\mu\eta c)$.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedsofim.strategies.rule import Descent


class Constants(NamedTuple):
    """What the assumptions name.

    Attributes:
        d: how many parameters there are.
        L: smoothness, Assumption 4.2.
        G_max: the largest gradient norm along the run, Assumption 4.8.
        zeta_max: the largest clipping bias along the run, Assumption 4.5.
        nu2: the largest variance of the noise on a coordinate of the aggregate, Eq. (5).
        G_0: a bound on the aggregate without its noise: the clip, Lemma 4.11, and with a penalty
            the norm of its gradient, Proposition 4.19.
    """

    d: int
    L: float
    G_max: float
    zeta_max: float
    nu2: float
    G_0: float


class Gamma(NamedTuple):
    """The terms of Eq. (20), by what they come from."""

    coupling: float
    clipping: float
    noise: float
    smoothness: float

    @property
    def total(self) -> float:
        """Their sum."""
        return sum(self)

    def over(self, divisor: float) -> "Gamma":
        """Each over the same number."""
        return Gamma(*(term / divisor for term in self))


class Young(NamedTuple):
    """The two free parameters of the proof, Remark 4.24; neither is one of the algorithm's."""

    tau1: float
    tau2: float

    def coefficient(self, rho: float) -> float:
        """The descent coefficient c, Eq. (17)."""
        return 1 / rho - (self.tau1 + self.tau2) / 2


def best_young(base: float, clipping: float, noise: float, rho: float) -> Young:
    r"""The parameters that make the floor as low as it gets.

    It is proportional to $(b + a_1/\tau_1 + a_2/\tau_2)/(1/\rho - (\tau_1+\tau_2)/2)$. For a given
    sum $\tau$ the best parts are as $\sqrt{a_1} : \sqrt{a_2}$, which leaves $b + s/\tau$ above with
    $s = (\sqrt{a_1}+\sqrt{a_2})^2$, and the best $\tau$ solves $b\tau^2/2 + s\tau = s/\rho$.
    """
    one, two = math.sqrt(clipping), math.sqrt(noise)
    s = (one + two) ** 2
    if s == 0:
        return Young(0.0, 0.0)
    # The root, written so that it is exact for small b as well.
    tau = 2 * s / rho / (s + math.sqrt(s * s + 2 * base * s / rho))
    return Young(tau * one / (one + two), tau * two / (one + two))


def young_for(k: Constants, how: Descent, eta: float) -> Young:
    """The best parameters for a rule at a learning rate."""
    square = 2 * how.rho**2
    noise = k.d * k.nu2 / square if how.coupled else 0.0
    one = gamma(k, how, 1.0, Young(math.inf, math.inf))
    base = one.coupling + eta * one.smoothness
    return best_young(base, k.zeta_max**2 / square, noise, how.rho)


def gamma(k: Constants, how: Descent, eta: float, young: Young) -> Gamma:
    """The terms of a step with learning rate `eta`, Eq. (20); without coupling, Lemma 4.25."""
    square, noise = how.rho**2, k.d * k.nu2
    M2 = k.G_0**2 + (1 - how.beta) * noise  # Eq. (11)
    return Gamma(
        coupling=eta * k.G_max**2 * M2 / square if how.coupled else 0.0,
        clipping=_over(eta * k.zeta_max**2, 2 * young.tau1 * square),
        noise=_over(eta * noise, 2 * young.tau2 * square) if how.coupled else 0.0,
        smoothness=k.L * eta**2 * (k.G_0**2 + noise) / (2 * square),
    )


def gap_bounds(
    gap: float, gammas: Sequence[float], etas: Sequence[float], mu: float, c: float
) -> Iterator[float]:
    """The bound on the gap before every round, and after the last: Eqs. (21) and (24)."""
    yield gap
    for eta, term in zip(etas, gammas, strict=True):
        gap = (1 - 2 * mu * eta * c) * gap + term
        yield gap


def stationarity_bounds(
    gap: float, gammas: Sequence[float], etas: Sequence[float], c: float
) -> Iterator[float]:
    """The bound on the mean squared gradient norm of the first T iterates: Theorem 4.31."""
    total = weight = 0.0
    for eta, term in zip(etas, gammas, strict=True):
        total, weight = total + term, weight + eta
        yield (gap + total) / (c * weight)


def _over(value: float, divisor: float) -> float:
    return value / divisor if value else 0.0
