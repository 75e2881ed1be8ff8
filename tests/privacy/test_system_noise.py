"""The operating system's noise: the right distribution, and nobody's to repeat."""

import numpy as np
import pytest
from scipy import stats

from fedsofim.privacy.mechanism import BoundedSum, add_gaussian
from fedsofim.privacy.system_noise import BLOCK, SystemNoise


def drawn(count: int, scale: float) -> np.ndarray:
    total = BoundedSum(np.zeros((1, count), np.float32), 10.0)
    return add_gaussian(total, scale / 10, SystemNoise()).ravel()


def test_it_is_gaussian_with_the_std_asked_for() -> None:
    """A KS test accepts the std, and would notice two thirds or three halves of it."""
    noise = drawn(20_000, 50.0)
    assert stats.kstest(noise, "norm", (0, 50.0)).pvalue > 1e-4
    for wrong in (50.0 * 2 / 3, 50.0 * 3 / 2):
        assert stats.kstest(noise, "norm", (0, wrong)).pvalue < 1e-12
    assert stats.kstest(noise, "laplace", (0, 50.0 / np.sqrt(2))).pvalue < 1e-12


def test_draws_are_independent_of_each_other() -> None:
    noise = SystemNoise().standard_normal(BLOCK + 10_000)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.02
    half = len(noise) // 2
    assert abs(np.corrcoef(noise[:half], noise[half : 2 * half])[0, 1]) < 0.03
    assert len(np.unique(noise)) == len(noise)


def test_no_seed_enters() -> None:
    np.random.seed(0)  # noqa: NPY002
    first = SystemNoise().standard_normal(8)
    np.random.seed(0)  # noqa: NPY002
    assert not np.any(first == SystemNoise().standard_normal(8))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5), 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shapes_and_types(shape: object, dtype: type) -> None:
    noise = SystemNoise().standard_normal(shape, dtype)
    assert noise.shape == np.empty(shape).shape  # type: ignore[call-overload]
    assert noise.dtype == dtype
    assert np.isfinite(noise).all()
