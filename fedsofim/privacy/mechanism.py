"""Sums of clipped contributions and the Gaussian noise that hides any one of them."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fedsofim.core.arrays import Array, Scale
from fedsofim.core.rng import Ids, add_noise, fill_noise, noise_of
from fedsofim.core.sums import Adjacency, BoundedSum


class NoiseSource(Protocol):
    """Where noise comes from: a seeded stream in a simulation, else `exact.ExactNoise`."""

    @property
    def exact(self) -> bool:
        """Whether it hides sums of exact integers, and no others."""

    def gaussian(self, total: BoundedSum, noise_multiplier: Scale) -> Array:
        """Independent noise of std `bound * noise_multiplier`, in the numbers of the sum."""


def sensitivity(bound: float, adjacency: Adjacency) -> float:
    """How far one record can move a sum to which each record contributes at most `bound`.

    >>> sensitivity(10.0, "replace-one"), sensitivity(10.0, "add-remove")
    (20.0, 10.0)
    """
    return 2 * bound if adjacency == "replace-one" else bound


class SeededNoise(NamedTuple):
    """The fast noise of a simulation, in floats: whoever knows the seed can subtract it.

    Nor is it exact: which floats can be noise, and how float32 sums round, gives records away to
    those who look at the last bits. It is for experiments; what leaves a machine is `ExactNoise`'s.
    """

    rng: np.random.Generator

    @property
    def exact(self) -> bool:
        """It hides sums of floats."""
        return False

    def gaussian(self, total: BoundedSum, noise_multiplier: Scale) -> Array:
        """Independent Gaussian noise for a bounded sum, of std `bound * noise_multiplier`.

        The heads of a stack are separate experiments and share their draws, each at its own scale.
        """
        std = _std(total.bound, noise_multiplier)
        if std is None:
            return np.zeros_like(total.value)
        noise = self.rng.standard_normal(total.value.shape[-2:], dtype=total.value.dtype)
        return np.asarray(noise * std)


def _std(bound: Scale, z: Scale) -> Scale | None:
    """The std of the noise, or one a head; `None` where there is none to draw."""
    if isinstance(z, np.ndarray):
        return np.asarray(np.where(z > 0, bound, 0).astype(z.dtype) * z)  # else maybe no bound
    return None if z == 0 else bound * z


@dataclass(frozen=True)
class Seeded:
    """The noise of every client of a simulation in a round, by client and number of the draw.

    Attributes:
        seed: of the run.
        t: the round, from 0; negative before the first.
    """

    seed: int
    t: int

    def __call__(self, client: int, draw: int) -> SeededNoise:
        return SeededNoise(noise_of(self.seed, self.t)(client, draw))

    def at(self, t: int) -> "Seeded":
        """The same in another round."""
        return Seeded(self.seed, t)

    def gaussians(self, totals: Array, bound: Scale, z: Scale, clients: Ids, draw: int) -> Array:
        """What `gaussian` gives each of these clients for its sum of `totals`, `(n, ...)`.

        It is stacked by client; zero where there is no noise to draw.
        """
        std = _std(bound, z)
        if std is None:
            return np.zeros_like(totals)
        noise = np.empty((len(totals), *totals.shape[-2:]), totals.dtype)
        fill_noise(noise, self.seed, self.t, clients, draw)
        return np.asarray((noise if totals.ndim == 3 else noise[:, None]) * std)

    def noisy_means(
        self, totals: Array, bound: Scale, z: Scale, clients: Ids, draw: int, sizes: Array
    ) -> Array:
        """Each client's sum with its noise, over its size: `totals` themselves, changed in place.

        Args:
            totals: the sums, stacked by client.
            bound: of one record's part in a sum.
            z: the noise multiplier.
            clients: whose sums.
            draw: the number of the draw within the round.
            sizes: how many records each client has, `(n,)`.
        """
        if isinstance(std := _std(bound, z), float) and totals.ndim == 3:
            add_noise(totals, std, sizes, self.seed, self.t, clients, draw)
            return totals
        totals += self.gaussians(totals, bound, z, clients, draw)
        totals /= sizes.astype(totals.dtype).reshape(-1, *(1,) * (totals.ndim - 1))
        return totals


def seeded(seed: int, t: int) -> Seeded:
    """The noise of every client of a simulation in round `t`."""
    return Seeded(seed, t)


def add_gaussian(total: BoundedSum, noise_multiplier: Scale, noise: NoiseSource) -> Array:
    r"""Release a bounded sum with independent Gaussian noise of std `bound * noise_multiplier`.

    Formally, one release is $\mu$-GDP with $\mu$ = sensitivity / std: 2 / noise_multiplier when a
    record may be replaced, 1 / noise_multiplier when it may be added or removed. A multiplier of
    zero adds nothing and protects nothing.

    Returns:
        The noisy sum, as floats: what was in units is multiplied with the unit.
    """
    return (total.value + noise.gaussian(total, noise_multiplier)) * total.unit
