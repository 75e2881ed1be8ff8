"""Synthetic images that stand in for data where no privacy may be spent: pink noise."""

import numpy as np

from fedsofim.linalg import Array

SIZE = 32


def pink_noise(rng: np.random.Generator, count: int, alpha: float = 1.0) -> Array:
    """Colour images whose amplitude falls with frequency as `1 / f^alpha`, as natural images' does.

    Args:
        rng: the stream they are drawn from.
        count: how many.
        alpha: the decay; 0 is white noise.

    Returns:
        `(count, 3, 32, 32)` float32, each channel with mean 0 and variance 1: inputs of a backbone
        as they are.
    """
    frequency = np.hypot(np.fft.fftfreq(SIZE)[:, None], np.fft.rfftfreq(SIZE)[None, :])
    frequency[0, 0] = 1  # the mean, which is removed below
    white = rng.standard_normal((count, 3, SIZE, SIZE), dtype=np.float32)
    x = np.fft.irfft2(np.fft.rfft2(white) * frequency**-alpha, s=(SIZE, SIZE))
    x -= x.mean(axis=(2, 3), keepdims=True)
    x /= x.std(axis=(2, 3), keepdims=True)
    return x.astype(np.float32)
