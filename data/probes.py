"""Synthetic inputs that stand in for data where no privacy may be spent.

Natural images have spectra that fall with frequency, so noise with such a spectrum drives a network
much as they do; token models are driven by random tokens in the form that they expect.
"""

from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require


def pink_noise(
    rng: np.random.Generator,
    count: int,
    alpha: float = 1.0,
    *,
    channels: int = 3,
    size: int = 32,
) -> Array:
    r"""Images of noise whose amplitude falls with frequency as $1/f^\alpha$.

    So the power falls as $1/f^{2\alpha}$: 1 is the spectrum of natural images. The DP-KFC paper's
    exponent is that of the power, so its 1 is 0.5 here.

    White noise is scaled by $f^{-\alpha}$ in the half of the spectrum that determines a real image,
    the other half being its mirror; the mean is removed.

    Args:
        rng: the stream that they are drawn from.
        count: how many.
        alpha: the decay; 0 is white noise.
        channels: drawn independently.
        size: the images' height and width.

    Returns:
        `(count, channels, size, size)` float32, each channel with mean 0 and variance 1.
    """
    require(size >= 2, f"size={size}: must be at least 2")
    f = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    f[0, 0] = 1
    amplitude = f**-alpha
    amplitude[0, 0] = 0
    white = rng.standard_normal((count, channels, size, size), dtype=np.float32)
    x = np.fft.irfft2(np.fft.rfft2(white) * amplitude, s=(size, size))
    x /= x.std(axis=(2, 3), keepdims=True)
    return x.astype(np.float32)


def white_noise(
    rng: np.random.Generator, count: int, *, channels: int = 3, size: int = 32
) -> Array:
    """Images of noise with a flat spectrum; otherwise as `pink_noise`."""
    return pink_noise(rng, count, 0.0, channels=channels, size=size)


class Tokens(NamedTuple):
    """Token sequences of one length, the shorter ones padded.

    Attributes:
        ids: `(count, length)` int64.
        mask: whether a position is a token and not padding, `(count, length)` bool.
    """

    ids: Array
    mask: Array


class Vocabulary(NamedTuple):
    """The token ids of a model: how many, and the special ones.

    Attributes:
        size: how many ids there are, from 0.
        pad: fills up short sequences.
        first: begins every sequence, if given ([CLS], <s>).
        last: ends every sequence, if given ([SEP], </s>).
        reserved: further ids that are never drawn.
    """

    size: int
    pad: int = 0
    first: int | None = None
    last: int | None = None
    reserved: tuple[int, ...] = ()

    def ordinary(self) -> Array:
        """The ids that may be drawn."""
        special = {self.pad, self.first, self.last, *self.reserved} - {None}
        inside = all(0 <= i < self.size for i in special if i is not None)
        require(inside, f"special tokens {sorted(map(str, special))}: ids go from 0 to size - 1")
        ids = np.array([i for i in range(self.size) if i not in special])
        require(len(ids) > 0, f"size={self.size}: no ordinary token is left")
        return ids


def token_noise(
    rng: np.random.Generator,
    count: int,
    vocabulary: Vocabulary,
    *,
    shortest: int,
    length: int,
) -> Tokens:
    """Structural token noise: random tokens in sequences of random length.

    The number of tokens in a sequence, special ones included, is uniform from `shortest` to
    `length`; the rest is padding, which the mask excludes.
    """
    special = (vocabulary.first is not None) + (vocabulary.last is not None)
    require(
        max(1, special) <= shortest <= length,
        f"shortest={shortest}: must be at least {max(1, special)} and at most {length}",
    )
    active = rng.integers(shortest, length + 1, count)
    mask = np.arange(length) < active[:, None]
    ids = np.where(mask, rng.choice(vocabulary.ordinary(), (count, length)), vocabulary.pad)
    if vocabulary.first is not None:
        ids[:, 0] = vocabulary.first
    if vocabulary.last is not None:
        ids[np.arange(count), active - 1] = vocabulary.last
    return Tokens(ids.astype(np.int64), mask)
