r"""Lower bounds on what a mechanism gives away, from how often an adversary guesses right.

Two kinds. Many runs on one pair of neighbours: how often a test says "D" under D and under D'
(Clopper & Pearson 1934) bounds $\varepsilon$ for any mechanism, and more sharply $\mu$ for one that
claims to be $\mu$-GDP (Nasr et al. 2023, arXiv:2302.07956). One run with many canaries: how many
fair coins an adversary guesses from it (Steinke, Nasr & Jagielski 2023, arXiv:2305.08846).

A bound holds with the stated confidence over the randomness of mechanism and coins. That it is low
proves nothing: the adversary may have been a poor one.
"""

import math
from collections.abc import Callable
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require

# How many thresholds are tried on the first half of the scores.
THRESHOLDS = 24


def binomial(n: int, p: float) -> Array:
    """The probabilities of 0 to n successes, `(n+1,)`.

    >>> binomial(2, 0.5).round(3)
    array([0.25, 0.5 , 0.25])
    """
    if p in (0, 1):
        return np.asarray(np.eye(n + 1)[n if p else 0])
    k, ways = _log_ways(n)
    return np.asarray(np.exp(ways + k * math.log(p) + (n - k) * math.log1p(-p)))


@cache
def _log_ways(n: int) -> tuple[Array, Array]:
    """The numbers 0 to n, and in how many ways so many can be chosen, as logarithms."""
    k = np.arange(n + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])  # log k!
    return k, logs[n] - logs - logs[::-1]


def least_rate(successes: int, trials: int, alpha: float) -> float:
    """The rate that, with probability `1 - alpha`, a binomial's rate is not below.

    >>> round(least_rate(95, 100, 0.025), 4)
    0.8872
    """
    if successes == 0:
        return 0.0
    return _last(lambda p: float(binomial(trials, p)[successes:].sum()) <= alpha, 1.0)


def largest_rate(successes: int, trials: int, alpha: float) -> float:
    """The rate that, with probability `1 - alpha`, a binomial's rate is not above.

    >>> round(largest_rate(0, 1000, 0.025), 5)
    0.00368
    """
    return 1 - least_rate(trials - successes, trials, alpha)


class Counts(NamedTuple):
    """How often a test said "D".

    Attributes:
        right: of the `under` trials with D.
        under: how many these were.
        wrong: of the `against` trials with D'.
        against: how many these were.
    """

    right: int
    under: int
    wrong: int
    against: int

    def rates(self, confidence: float) -> tuple[float, float]:
        """The least rate of right and the largest rate of wrong ones; both hold at once."""
        alpha = (1 - confidence) / 2
        return (
            least_rate(self.right, self.under, alpha),
            largest_rate(self.wrong, self.against, alpha),
        )


def epsilon_bound(counts: Counts, delta: float, confidence: float) -> float:
    r"""The least $\varepsilon$ of any $(\varepsilon, \delta)$-DP mechanism with such counts.

    For every test, $P_D \le e^\varepsilon P_{D'} + \delta$, and so for its opposite.
    """
    right, wrong = counts.rates(confidence)
    ratios = ((right - delta, wrong), (1 - wrong - delta, 1 - right))
    return max([0.0, *(math.log(a / b) for a, b in ratios if a > 0)])


def mu_bound(counts: Counts, confidence: float) -> float:
    r"""The least $\mu$ of any $\mu$-GDP mechanism with such counts.

    For every test, $\Phi^{-1}(P_D) - \Phi^{-1}(P_{D'}) \le \mu$.
    """
    right, wrong = counts.rates(confidence)
    if right == 0 or wrong == 1:
        return 0.0
    quantile = NormalDist().inv_cdf
    return max(0.0, quantile(right) - quantile(wrong))


def best_threshold(under: Array, against: Array, bound: Callable[[Counts], float]) -> float:
    """The threshold from which on a score says "D", so that these scores give the best bound.

    It is chosen by the scores, so a bound must be taken on others.
    """
    pooled = np.unique(np.concatenate([under, against]))
    tried = pooled[np.linspace(0, len(pooled) - 1, THRESHOLDS).astype(int)]
    return max(map(float, np.unique(tried)), key=lambda at: bound(counted(under, against, at)))


def counted(under: Array, against: Array, threshold: float) -> Counts:
    """How many scores under D and D' reach a threshold."""
    right, wrong = (int((scores >= threshold).sum()) for scores in (under, against))
    return Counts(right, len(under), wrong, len(against))


class Samples(NamedTuple):
    """What was seen in some trials.

    Attributes:
        under: with D, `(n, p)`; a column for each round, say.
        against: with D'.
        noise: of the first half of these trials, columns in which nothing but noise is, `(N, p)`;
            the more there are, the better the noise's covariance is known.
    """

    under: Array
    against: Array
    noise: Array


def linear_statistic(under: Array, against: Array, noise: Array) -> Array:
    r"""The weights of the linear statistic that tells two samples `(n, p)` apart best.

    $\Sigma^{-1}(\bar a - \bar b)$. Where noise is reused, the covariance $\Sigma$ is singular, and
    a difference that it leaves bare gets all the weight.
    """
    covariance = noise.T @ noise / len(noise)
    p = len(covariance)
    ridge = 1e-9 * max(float(np.trace(covariance)) / p, np.finfo(float).tiny)
    difference = under.mean(axis=0) - against.mean(axis=0)
    return np.linalg.solve(covariance + ridge * np.eye(p), difference)


def held_out(samples: Samples, bound: Callable[[Counts], float]) -> Counts:
    """What a test chosen on the first half of the trials says on the second.

    Args:
        samples: of as many trials with D as with D'.
        bound: what the threshold should make large.
    """
    under, against, noise = samples
    half = len(under) // 2
    require(half >= 2 and len(against) == len(under), "an audit needs four trials a side")
    weights = np.ones(1)
    if under.shape[1] > 1:
        weights = linear_statistic(under[:half], against[:half], noise)
    a, b = under @ weights, against @ weights
    return counted(a[half:], b[half:], best_threshold(a[:half], b[:half], bound))


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    r"""How likely so many right guesses are at most, if the run is $(\varepsilon, \delta)$-DP.

    Theorem 5.2 of Steinke et al. (2023): of m fair coins, each of which decided about one record,
    r are guessed. Then, with $W \sim \mathrm{Bin}(r, e^\varepsilon/(1 + e^\varepsilon))$,

    $$P[\text{correct} \ge v] \le P[W \ge v]
        + 2 m \delta \max_{1 \le i \le v} \tfrac1i P[v - i \le W < v].$$
    """
    mass = binomial(guesses, 1 / (1 + math.exp(-epsilon)))
    tail = float(mass[correct:].sum())
    below = np.cumsum(mass[:correct][::-1]) / np.arange(1, correct + 1)
    return min(1.0, tail + 2 * canaries * delta * float(below.max(initial=0.0)))


def one_run_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float
) -> float:
    """The least epsilon for which one run's right guesses are not too many.

    >>> round(one_run_bound(1000, 100, 100, 1e-5, 0.95), 2)
    3.47
    """

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) < 1 - confidence

    return _last(refuted, 30.0)


def guesses_for(mu: float, canaries: int, delta: float, confidence: float) -> int:
    """How many coins to guess, an even number, the surest first, if each shows a mu-GDP difference.

    It is chosen by the claim, never by what the run shows, so the bound stays valid.
    """
    normal = NormalDist()
    draws = np.array([normal.inv_cdf((i + 0.5) / 2000) for i in range(2000)]) + mu / 2
    order = np.argsort(-np.abs(draws))
    best, most = 2, -1.0
    for share in (0.99, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05):
        r = max(2, 2 * round(share * canaries / 2))
        accuracy = float((draws[order[: max(1, round(share * len(draws)))]] > 0).mean())
        expected = one_run_bound(canaries, r, math.floor(r * accuracy), delta, confidence)
        if expected > most:
            best, most = r, expected
    return best


def _last(holds: Callable[[float], bool], high: float) -> float:
    """The largest number in [0, high] up to which a condition holds, rounded downwards."""
    low = 0.0
    if not holds(low):
        return low
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
