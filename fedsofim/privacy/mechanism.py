"""Sums of clipped contributions and the Gaussian noise that hides any one of them."""

from typing import Any, Literal, NamedTuple, Protocol

from fedsofim.linalg import Array

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
    bound: float


def add_gaussian(total: BoundedSum, noise_multiplier: float, rng: NormalSource) -> Array:
    r"""Release a bounded sum with independent Gaussian noise of std `bound * noise_multiplier`.

    Formally, one release is $\mu$-GDP with $\mu$ = sensitivity / std: 2 / noise_multiplier when a
    record may be replaced, 1 / noise_multiplier when it may be added or removed. A multiplier of
    zero adds nothing and protects nothing.
    """
    if noise_multiplier == 0:
        return total.value
    noise = rng.standard_normal(total.value.shape, dtype=total.value.dtype)
    noise *= total.bound * noise_multiplier
    noise += total.value
    return noise
