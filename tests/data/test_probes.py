"""Synthetic probes: their spectrum, their form, and that seeds decide them."""

import numpy as np
import pytest

from fedsofim.core.errors import ConfigError
from fedsofim.core.rng import Purpose, stream
from fedsofim.data.probes import Vocabulary, pink_noise, token_noise, white_noise


def radial_slope(x):
    """The slope of the mean power over the frequency, on logarithmic axes."""
    size = x.shape[-1]
    power = (np.abs(np.fft.fft2(x.astype(np.float64))) ** 2).mean(axis=(0, 1))
    f = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size), indexing="ij"))
    ring = np.rint(f * size).astype(int)
    rings = range(1, size // 2)
    means = [power[ring == k].mean() for k in rings]
    centres = [f[ring == k].mean() for k in rings]
    return np.polyfit(np.log(centres), np.log(means), 1)[0]


@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 1.5])
def test_the_radial_power_spectrum_has_the_asked_slope(size, channels, alpha):
    x = pink_noise(np.random.default_rng(0), 400, alpha, channels=channels, size=size)
    assert x.shape == (400, channels, size, size)
    assert x.dtype == np.float32
    assert radial_slope(x) == pytest.approx(-2 * alpha, abs=0.08)


@pytest.mark.parametrize("size", [27, 28, 32])
def test_pink_noise_is_exactly_real_with_mean_0_and_variance_1(size):
    x = pink_noise(np.random.default_rng(1), 8, size=size)
    assert not np.iscomplexobj(x)
    np.testing.assert_allclose(x.mean(axis=(2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(x.var(axis=(2, 3)), 1, rtol=1e-5)
    # By the long way: the whole spectrum, scaled, is its own mirror, and its inverse is that image.
    f = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size), indexing="ij"))
    f[0, 0] = np.inf
    white = np.random.default_rng(1).standard_normal((8, 3, size, size), dtype=np.float32)
    Z = np.fft.fft2(white.astype(np.float64)) / f
    mirror = np.roll(Z[..., ::-1, ::-1], (1, 1), axis=(-2, -1)).conj()
    np.testing.assert_allclose(Z, mirror, atol=1e-10)
    whole = np.fft.ifft2(Z)
    assert np.abs(whole.imag).max() < 1e-13
    np.testing.assert_allclose(x, whole.real / whole.real.std(axis=(2, 3), keepdims=True), 0, 2e-5)


def test_white_noise_is_flat_and_seeds_reproduce():
    def draw(seed):
        return white_noise(stream(seed, Purpose.PROBE), 4, channels=1, size=28)

    np.testing.assert_array_equal(draw(0), draw(0))
    assert not np.array_equal(draw(0), draw(1))
    assert draw(0).shape == (4, 1, 28, 28)


def test_token_noise_has_the_structure_that_models_expect():
    words = Vocabulary(size=50, pad=0, first=2, last=3, reserved=(1, 4))
    ids, mask = token_noise(np.random.default_rng(0), 2000, words, shortest=5, length=12)
    assert ids.shape == mask.shape == (2000, 12)
    active = mask.sum(axis=1)
    assert set(active.tolist()) == set(range(5, 13))  # every length occurs
    assert np.abs(np.bincount(active)[5:] / 2000 - 1 / 8).max() < 0.03
    np.testing.assert_array_equal(mask, np.arange(12) < active[:, None])
    assert (ids[~mask] == 0).all()
    assert (ids[:, 0] == 2).all()
    assert (ids[np.arange(2000), active - 1] == 3).all()
    inner = ids[:, 1:][np.arange(1, 12) < active[:, None] - 1]
    assert set(inner.tolist()) == set(range(5, 50))
    again = token_noise(np.random.default_rng(0), 2000, words, shortest=5, length=12)
    np.testing.assert_array_equal(again.ids, ids)


def test_token_noise_without_special_tokens():
    ids, mask = token_noise(np.random.default_rng(0), 10, Vocabulary(3), shortest=1, length=1)
    assert mask.all()
    assert set(ids.ravel().tolist()) <= {1, 2}


@pytest.mark.parametrize(
    ("vocabulary", "shortest", "told"),
    [
        (Vocabulary(10, first=1, last=2), 1, "shortest=1"),
        (Vocabulary(10), 9, "shortest=9"),
        (Vocabulary(10, first=10), 3, "ids go from 0"),
        (Vocabulary(2, first=1), 3, "no ordinary token"),
    ],
)
def test_impossible_sequences_are_refused(vocabulary, shortest, told):
    with pytest.raises(ConfigError, match=told):
        token_noise(np.random.default_rng(0), 2, vocabulary, shortest=shortest, length=8)
