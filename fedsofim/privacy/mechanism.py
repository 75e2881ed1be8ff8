"""Sums of clipped contributions and the Gaussian noise that hides any one of them."""

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from fedsofim.core.arrays import Array, Scale

Adjacency = Literal["replace-one", "add-remove"]


class NormalSource(Protocol):
    """What noise is drawn from: a seeded stream in a simulation, else `entropy.SystemNoise`."""

    def standard_normal(self, size: Any, dtype: Any) -> Array:
        """Independent standard normal numbers."""


def sensitivity(bound: float, adjacency: Adjacency) -> float:
    """How far one record can move a sum to which each record contributes at most `bound`.

    >>> sensitivity(10.0, "replace-one"), sensitivity(10.0, "add-remove")
    (20.0, 10.0)
    """
    return 2 * bound if adjacency == "replace-one" else bound


class BoundedSum(NamedTuple):
    """A sum over records, and the Euclidean norm that no record's contribution exceeds."""

    value: Array
    bound: Scale


def gaussian(like: BoundedSum, noise_multiplier: Scale, rng: NormalSource) -> Array:
    """Independent Gaussian noise for a bounded sum, of std `bound * noise_multiplier`.

    The heads of a stack are separate experiments and share their draws, each at its own scale.
    """
    z, bound = noise_multiplier, like.bound
    if isinstance(z, np.ndarray):
        bound = np.where(z > 0, bound, 0).astype(z.dtype)  # without noise there may be no bound
    elif z == 0:
        return np.zeros_like(like.value)
    noise = rng.standard_normal(like.value.shape[-2:], dtype=like.value.dtype)
    return np.asarray(noise * (bound * z))


def add_gaussian(total: BoundedSum, noise_multiplier: Scale, rng: NormalSource) -> Array:
    r"""Release a bounded sum with independent Gaussian noise of std `bound * noise_multiplier`.

    Formally, one release is $\mu$-GDP with $\mu$ = sensitivity / std: 2 / noise_multiplier when a
    record may be replaced, 1 / noise_multiplier when it may be added or removed. A multiplier of
    zero adds nothing and protects nothing.
    """
    return total.value + gaussian(total, noise_multiplier, rng)
