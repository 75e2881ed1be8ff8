import numpy as np
import pytest
from scipy.stats import kstest

from fedsofim.core.rng import Purpose, stream
from fedsofim.core.sums import BoundedSum
from fedsofim.privacy.mechanism import SeededNoise, add_gaussian, sensitivity

BOUND, Z = 10.0, 8.36474


def noise(*key, shape=(20_000,), dtype=np.float32):
    zero = BoundedSum(np.zeros(shape, dtype), BOUND)
    return add_gaussian(zero, Z, SeededNoise(stream(0, Purpose.NOISE, *key)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_has_the_std_it_should_and_no_other(dtype):
    x = noise(0, 0, dtype=dtype).astype(float)
    std = BOUND * Z
    assert kstest(x / std, "norm").pvalue > 0.01
    assert kstest(x / (std * 2 / 3), "norm").pvalue < 1e-6
    assert kstest(x / (std * 3 / 2), "norm").pvalue < 1e-6
    assert kstest((x + 0.1 * std) / std, "norm").pvalue < 1e-6


def test_noise_is_around_the_sum(rng):
    value = 1e4 * rng.normal(size=20_000)
    released = add_gaussian(BoundedSum(value, BOUND), Z, SeededNoise(rng))
    assert kstest((released - value) / (BOUND * Z), "norm").pvalue > 0.01


def test_rounds_clients_and_draws_are_independent():
    x = np.stack([noise(t, i, k).astype(float) for t in range(3) for i in range(3) for k in (0, 1)])
    correlation = np.corrcoef(x)[~np.eye(len(x), dtype=bool)]
    assert np.abs(correlation).max() < 5 / np.sqrt(x.shape[1])
    # Sums of independent draws have the std of independent draws.
    assert kstest(x.sum(axis=0) / (BOUND * Z * np.sqrt(len(x))), "norm").pvalue > 0.01


def test_coordinates_are_independent():
    x = noise(0, 0, shape=(400, 50)).astype(float)
    correlation = np.corrcoef(x.T)[~np.eye(50, dtype=bool)]
    assert np.abs(correlation).max() < 5.5 / np.sqrt(400)


def test_a_stream_is_used_up_and_never_twice():
    noise = SeededNoise(stream(0, Purpose.NOISE, 0))
    zero = BoundedSum(np.zeros(100), BOUND)
    assert (add_gaussian(zero, Z, noise) != add_gaussian(zero, Z, noise)).all()


def test_the_sum_is_not_changed(rng):
    value = rng.normal(size=(3, 4))
    before = value.copy()
    released = add_gaussian(BoundedSum(value, BOUND), Z, SeededNoise(rng))
    np.testing.assert_array_equal(value, before)
    assert (released.shape, released.dtype) == (value.shape, value.dtype)


def test_no_noise_releases_the_sum_itself(rng):
    value = rng.normal(size=5)
    released = add_gaussian(BoundedSum(value, np.inf), 0.0, SeededNoise(rng))
    np.testing.assert_array_equal(released, value)
    released += 1  # a copy, so what is done with it stays outside
    assert (released != value).all()


def test_sensitivity_of_each_adjacency():
    assert sensitivity(3.0, "replace-one") == 6.0
    assert sensitivity(3.0, "add-remove") == 3.0
