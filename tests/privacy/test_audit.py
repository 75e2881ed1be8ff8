"""Bounds hold as often as they say, and not because they are always low."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsofim.privacy.accounting import epsilon_of
from fedsofim.privacy.audit import (
    Counts,
    Samples,
    binomial,
    epsilon_bound,
    guesses_for,
    held_out,
    largest_rate,
    least_rate,
    linear_statistic,
    mu_bound,
    one_run_bound,
    one_run_p_value,
)

ALPHA = 0.05


def too_often(misses, repeats):
    """Whether so many misses are beyond what a confidence of 95 % allows."""
    return stats.binom.sf(misses - 1, repeats, ALPHA) < 1e-4


@given(n=st.integers(1, 3000), p=st.just(0.0) | st.floats(1e-12, 1))  # SciPy overflows below
def test_binomial_agrees_with_scipy(n, p):
    np.testing.assert_allclose(binomial(n, p), stats.binom.pmf(range(n + 1), n, p), atol=1e-10)


@given(n=st.integers(1, 3000), share=st.floats(0, 1), alpha=st.floats(1e-4, 0.3))
def test_rates_agree_with_scipy(n, share, alpha):
    k = round(share * n)
    least = stats.beta.ppf(alpha, k, n - k + 1) if k else 0.0
    largest = stats.beta.ppf(1 - alpha, k + 1, n - k) if k < n else 1.0
    assert least_rate(k, n, alpha) == pytest.approx(least, abs=1e-9)
    assert largest_rate(k, n, alpha) == pytest.approx(largest, abs=1e-9)


@given(
    m=st.integers(1, 400), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    epsilon=st.floats(0, 8), delta=st.floats(0, 0.01),
)  # fmt: skip
def test_the_p_value_is_that_of_the_theorem(m, shares, epsilon, delta):
    r = max(1, round(shares[0] * m))
    v = round(shares[1] * r)
    W = stats.binom(r, math.exp(epsilon) / (1 + math.exp(epsilon)))
    slope = max([(W.cdf(v - 1) - W.cdf(v - i - 1)) / i for i in range(1, m + 1)])
    expected = min(1.0, W.sf(v - 1) + 2 * m * delta * slope)
    assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(expected, abs=1e-9)


def bounds_of(correct, m, r, delta):
    """The bound for each number of right guesses, each computed once."""
    known = {v: one_run_bound(m, r, v, delta, 1 - ALPHA) for v in set(correct.tolist())}
    return np.array([known[v] for v in correct.tolist()])


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_one_run_is_right_about_randomized_response(rng, epsilon):
    """The worst mechanism there is: the bound is too high in 5 % of the runs, and close in most."""
    m, repeats = 1000, 4000
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    bounds = bounds_of(rng.binomial(m, truth, repeats), m, m, 0.0)
    misses = int((bounds > epsilon).sum())
    assert not too_often(misses, repeats)
    assert misses > 0.01 * repeats  # it is not low for safety's sake
    assert np.median(bounds) > epsilon - 0.4


def test_one_run_allows_for_delta_and_must(rng):
    """Randomized response that shows all coins with probability delta."""
    m, epsilon, delta, repeats = 50, 0.5, 0.05, 20_000
    correct = rng.binomial(m, math.exp(epsilon) / (1 + math.exp(epsilon)), repeats)
    correct = np.where(rng.random(repeats) < delta, m, correct)
    assert not too_often(int((bounds_of(correct, m, m, delta) > epsilon).sum()), repeats)
    assert too_often(int((bounds_of(correct, m, m, 0.0) > epsilon).sum()), repeats)


@pytest.mark.parametrize("mu", [0.5, 2.0, 4.0])
def test_one_run_is_right_about_a_gaussian(rng, mu):
    m, delta, repeats = 500, 1e-5, 1000
    heads = rng.random((repeats, m)) < 0.5
    scores = np.where(heads, mu / 2, -mu / 2) + rng.normal(size=(repeats, m))
    r = guesses_for(mu, m, delta, 1 - ALPHA)
    assert r % 2 == 0
    order = np.argsort(scores, axis=1)
    low, high = order[:, : r // 2], order[:, m - r // 2 :]
    right = (~np.take_along_axis(heads, low, 1)).sum(1) + np.take_along_axis(heads, high, 1).sum(1)
    bounds = bounds_of(right, m, r, delta)
    assert not too_often(int((bounds > epsilon_of(mu, delta)).sum()), repeats)
    assert np.median(bounds) > 0.1 * mu


def gaussian_samples(rng, mu, trials):
    under, against = rng.normal(size=(2, trials, 1))
    return Samples(under + mu, against, np.zeros((1, 1)))


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_pair_is_right_about_a_gaussian(rng, mu):
    repeats, trials = 100, 600 if mu < 1 else 200
    found = [
        mu_bound(held_out(gaussian_samples(rng, mu, trials), lambda c: mu_bound(c, 0.95)), 0.95)
        for _ in range(repeats)
    ]
    assert not too_often(sum(bound > mu for bound in found), repeats)
    assert np.median(found) > mu - (0.45 if mu < 1 else 0.8)


def test_a_pair_refutes_two_thirds_of_the_noise(rng):
    counts = held_out(gaussian_samples(rng, 3.0, 1000), lambda c: mu_bound(c, 0.95))
    assert mu_bound(counts, 0.95) > 2.0


@given(
    n=st.integers(1, 2000), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    delta=st.sampled_from([1e-9, 1e-5, 1e-3]),
)  # fmt: skip
def test_what_holds_for_any_mechanism_is_no_more_than_for_a_gaussian(n, shares, delta):
    counts = Counts(round(shares[0] * n), n, round(shares[1] * n), n)
    mu = mu_bound(counts, 0.95)
    if mu > 0:
        assert epsilon_bound(counts, delta, 0.95) <= epsilon_of(mu, delta) + 1e-9


def test_the_bound_for_any_mechanism_by_hand():
    right = stats.beta.ppf(0.025, 2000, 1)
    wrong = stats.beta.ppf(0.975, 1, 2000)
    bound = epsilon_bound(Counts(2000, 2000, 0, 2000), 1e-5, 0.95)
    assert bound == pytest.approx(math.log((right - 1e-5) / wrong))
    assert bound == pytest.approx(6.3, abs=0.01)


def test_the_linear_statistic_is_fishers(rng):
    mixing = rng.normal(size=(3, 3))
    noise = rng.normal(size=(200_000, 3)) @ mixing
    shift = np.array([1.0, 2.0, -1.0])
    weights = linear_statistic(noise[:100_000] + shift, noise[100_000:], noise)
    best = np.linalg.solve(mixing.T @ mixing, shift)
    cosine = weights @ best / np.linalg.norm(weights) / np.linalg.norm(best)
    assert cosine > 0.999


def test_reused_noise_is_taken_out(rng):
    """The same noise in two rounds, and a record that shows in one of them."""
    n = 200
    same = np.repeat(rng.normal(size=(2 * n, 1)), 2, axis=1)
    under = same[:n] + np.array([0.1, 0.0])
    samples = Samples(under, same[n:], same[: n // 2])
    counts = held_out(samples, lambda c: mu_bound(c, 0.95))
    assert counts.right == counts.under
    assert counts.wrong == 0
