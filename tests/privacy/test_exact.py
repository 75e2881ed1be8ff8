"""Exact noise: the discrete Gaussian it should be, nobody's to repeat, and charged for in full."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from fedsofim.core.errors import ConfigError
from fedsofim.core.sums import BoundedSum
from fedsofim.privacy.accounting import SAFETY, epsilon_of
from fedsofim.privacy.exact import LEAST_STD, ExactNoise, discrete_gaussian
from fedsofim.privacy.mechanism import add_gaussian

B, DELTA = 2.0**36, 1e-5


def integers(shape=(1, 4), value=0, unit=1.0):
    return BoundedSum(np.full(shape, value, np.int64), B, unit)


def drawn(z, shape):
    return ExactNoise().gaussian(integers(shape), z)


def test_it_is_gaussian_with_the_std_asked_for() -> None:
    noise = drawn(8.4, (200, 40)).ravel()
    std = 8.4 * B
    assert stats.kstest(noise, "norm", (0, std)).pvalue > 1e-4
    for wrong in (std * 2 / 3, std * 3 / 2):
        assert stats.kstest(noise, "norm", (0, wrong)).pvalue < 1e-12
    assert stats.kstest(noise, "laplace", (0, std / math.sqrt(2))).pvalue < 1e-6


@pytest.mark.parametrize("std", [0.7, 3.0, 11.5])
def test_every_integer_has_the_probability_it_should(std: float) -> None:
    """Where single integers can be counted: the discrete Gaussian, and no wider or narrower one."""
    count, reach = 20_000, max(1, math.floor(2.5 * std))
    noise = np.clip(discrete_gaussian(count, std), -reach, reach)
    seen = np.bincount(noise + reach, minlength=2 * reach + 1)

    def pvalue(scale: float) -> float:
        n = np.arange(-20 * reach, 20 * reach + 1)
        p = np.exp(-((n / scale) ** 2) / 2)
        p = np.bincount(np.clip(n, -reach, reach) + reach, p / p.sum())  # the tails together
        return float(stats.chisquare(seen, p * count).pvalue)

    assert pvalue(std) > 1e-4
    assert pvalue(std * 2 / 3) < 1e-12
    assert pvalue(std * 3 / 2) < 1e-12


def test_all_bits_are_random_and_draws_differ() -> None:
    noise = drawn(1.0, (100, 40)).ravel()
    assert len(np.unique(noise)) == noise.size
    for bit in range(30):  # none of the low bits knows what is under it
        ones = int((noise >> bit & 1).sum())
        assert stats.binomtest(ones, noise.size).pvalue > 1e-6
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.1


def test_no_seed_enters() -> None:
    np.random.seed(0)  # noqa: NPY002
    first = drawn(1.0, (8,))
    np.random.seed(0)  # noqa: NPY002
    assert not np.any(first == drawn(1.0, (8,)))


def test_a_release_is_in_units() -> None:
    total = integers((1, 4000), value=10**12, unit=2.0**-30)
    released = add_gaussian(total, 2.0, ExactNoise())
    noise = released.ravel() - 10**12 * 2.0**-30
    assert stats.kstest(noise, "norm", (0, 2.0 * B * 2.0**-30)).pvalue > 1e-4


def test_no_noise_is_none() -> None:
    assert not drawn(0.0, (3, 3)).any()
    assert not drawn(np.zeros((1, 1, 1), np.float32), (1, 3, 3)).any()


def test_a_sum_of_floats_is_not_hidden() -> None:
    with pytest.raises(TypeError, match="sums of integers, not of float32"):
        ExactNoise().gaussian(BoundedSum(np.zeros((2, 2), np.float32), 1.0), 1.0)


@pytest.mark.parametrize("z", [1e-6, 1e8, math.inf])
def test_what_is_too_little_or_leaves_the_range_is_refused(z: float) -> None:
    with pytest.raises(ConfigError, match="exact noise needs one between"):
        drawn(z, (2, 2))


def test_a_stacks_multiplier_is_never_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "fedsofim.privacy.exact.discrete_gaussian",
        lambda count, std: asked.append(std) or np.zeros(count, np.int64),
    )
    for z in (8.36474, 0.1, 1.0):
        drawn(np.array([[[z]]], np.float32), (1, 2, 2))
        assert z * B < asked.pop() < z * B * (1 + 3e-7)


def log_ratio(n: np.ndarray, s: float) -> np.ndarray:
    """Of the discrete Gaussian to the rounded continuous one, with the digits that survive."""
    reach = np.arange(-math.ceil(15 * s), math.ceil(15 * s) + 1)
    p = np.exp(-((n / s) ** 2) / 2) / np.exp(-((reach / s) ** 2) / 2).sum()
    a = np.abs(n)
    return np.log(p / (stats.norm.sf((a - 0.5) / s) - stats.norm.sf((a + 0.5) / s)))


@pytest.mark.parametrize("s", [1.0, 3.0, 30.0, 300.0])
def test_the_discrete_gaussian_is_as_near_to_the_rounded_one_as_proven(s: float) -> None:
    n = np.arange(-math.floor(6 * s), math.floor(6 * s) + 1)
    bound = (1 + (n / s) ** 2 / 3) / (8 * s**2)
    assert (np.abs(log_ratio(n, s)) <= bound + 4 * np.exp(-2 * (math.pi * s) ** 2) + 1e-9).all()
    assert np.abs(log_ratio(n, s)).max() > 0.2 * bound.max() or s == 300  # and not much nearer


@pytest.mark.parametrize(("sigma", "moved"), [(2.0, 1), (5.0, 3), (50.0, 40), (2000.0, 1500)])
@pytest.mark.parametrize("count", [1, 30])
def test_the_accountant_never_claims_less(sigma: float, moved: int, count: int) -> None:
    """dp-accounting's discrete Gaussian, rounded towards more, is within the slack that is proven.

    At the smallest noise that is accepted, 2^25, the same slack is below the accountant's own.
    """
    one = pld.from_discrete_gaussian_mechanism(sigma, moved, value_discretization_interval=1e-4)
    theirs = one.self_compose(count).get_epsilon_for_delta(DELTA)
    ours = epsilon_of(math.sqrt(count) * moved / sigma, DELTA)
    rounding = count * 1e-4  # of their grid
    slack = 2 * (2 * count + math.log(1 / DELTA)) / (8 * sigma**2)
    assert theirs <= ours + slack + rounding
    assert theirs >= ours - slack - 2e-3 * ours  # it is the same mechanism that is compared
    assert slack * (sigma / LEAST_STD) ** 2 < SAFETY
