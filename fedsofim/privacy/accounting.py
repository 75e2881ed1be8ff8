r"""Exact accounting for Gaussian releases (Balle & Wang 2018; Dong, Roth & Su 2022).

A release with sensitivity $\Delta$ and noise std $s$ is $\mu$-GDP with $\mu = \Delta / s$, releases
compose as $\mu^2 = \sum_j \mu_j^2$, and $\mu$-GDP is $(\varepsilon, \delta)$-DP exactly for

$$\delta(\varepsilon) = \Phi(-\varepsilon/\mu + \mu/2)
    - e^\varepsilon\,\Phi(-\varepsilon/\mu - \mu/2).$$

This is Appendix E of the DP-FedSOFIM paper. Nothing here is a bound: both directions are solved to
the last digits, and rounding always falls on the side of more noise.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Calibration aims this much below the budget, far above rounding and far below what is visible.
SAFETY = 1e-9
# Publishing one record in a hundred, as it is, would keep this delta: no promise worth the name.
LARGEST_DELTA = 0.01


@dataclass(frozen=True)
class GaussianEvent:
    """`count` releases of the same record, each with this sensitivity and noise std.

    A correlated release may be worth a number of independent ones that is not whole.
    """

    sensitivity: float
    std: float
    count: float = 1

    @property
    def mu(self) -> float:
        """The GDP parameter of all `count` releases together."""
        if self.count == 0 or self.sensitivity == 0:
            return 0.0
        return math.sqrt(self.count) * self.sensitivity / self.std if self.std else math.inf


def compose(events: Iterable[GaussianEvent]) -> float:
    """The GDP parameter of all events together.

    >>> compose([GaussianEvent(3.0, 1.0), GaussianEvent(1.0, 1.0, count=16)])
    5.0
    """
    return math.hypot(*(event.mu for event in events))


def log_phi(x: float) -> float:
    r"""$\log \Phi(x)$, to the last digits for any x, without the time that importing SciPy takes.

    >>> log_phi(0.0) == math.log(0.5)
    True
    """
    if x > -1:
        return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)
    if x > -35:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    if math.isinf(x):
        return -math.inf
    y = 1 / (x * x)  # where erfc would underflow, a few terms of its asymptotic series are exact
    tail = math.log1p(y * (-1 + y * (3 + y * (-15 + y * 105))))
    return -x * x / 2 - math.log(-x) - math.log(2 * math.pi) / 2 + tail


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest delta for which a mu-GDP mechanism is (epsilon, delta)-DP."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    log_a, log_b = log_phi(-epsilon / mu + mu / 2), log_phi(-epsilon / mu - mu / 2)
    return -math.exp(log_a) * math.expm1(min(0.0, epsilon + log_b - log_a))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon for which a mu-GDP mechanism is (epsilon, delta)-DP.

    >>> round(epsilon_of(2.000446, 1e-5), 3)
    10.0
    """
    if not math.isfinite(mu):  # NaN, too: what cannot be counted is not private
        return math.inf
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    return _bisect(lambda epsilon: delta_of(mu, epsilon) <= delta, 0.0)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu for which a mu-GDP mechanism is (epsilon, delta)-DP.

    >>> round(mu_of(1.0, 1e-5), 6)
    0.268051
    """
    if math.isinf(epsilon):
        return math.inf
    inverse = _bisect(lambda s: delta_of(1 / s, epsilon) <= delta, 0.0)
    return (1 - SAFETY) / inverse


def _bisect(holds: Callable[[float], bool], low: float) -> float:
    """The least number above `low` for which a monotone condition holds, rounded upwards."""
    high = 1.0
    while not holds(high):
        low, high = high, 2 * high
    while low == 0.0 and high > 1e-300 and holds(high / 2):
        high /= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
