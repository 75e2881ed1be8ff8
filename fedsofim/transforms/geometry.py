"""Transforms that map records, by private or public statistics; `stages.py` says how."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.models.records import Records
from fedsofim.strategies.stage import Stage, check_radius
from fedsofim.transforms.kfc import Transform
from fedsofim.transforms.stages import (
    Covariance,
    Geometry,
    Mean,
    affine,
    of_size,
    public_statistics,
    whitening,
)


@dataclass(frozen=True, kw_only=True)
class Mapped(Transform):
    """A transform that maps records.

    Attributes:
        statistics: the weights whose public statistics say what norms are usual, and where the
            mean may be.
        radius: the clip of a record's features for the mean, instead of the public median norm.
        centred_radius: the clip of centred features; by default the public one, or `radius`.
        nonnegative: whether features are not negative, which halves the mean's variance of noise;
            by default they are not where they are those of the known weights.
    """

    name: ClassVar[str] = "mapped"
    maps: ClassVar[bool] = True
    statistics: str | None = None
    radius: float | None = None
    centred_radius: float | None = None
    nonnegative: bool | None = None

    def __post_init__(self) -> None:
        for name in ("radius", "centred_radius"):
            given = getattr(self, name)
            if given is not None:
                check_radius(name, given)
        require(
            self.statistics is not None or self.radius is not None,
            "radius: a value is missing; what norm features usually have is not known here, and "
            "to read it off the records would be a release: give it from public knowledge, or "
            "transform.statistics=resnet20-cifar100 for features of that backbone",
        )
        if self.statistics is not None:
            public_statistics(self.statistics)

    @property
    def radii(self) -> tuple[float, float]:
        """The clips of features, and of centred features."""
        known = None if self.statistics is None else public_statistics(self.statistics)
        if self.radius is None:
            assert known is not None
            return known.radius, self.centred_radius or known.centred_radius
        return self.radius, self.centred_radius or self.radius

    def refresh(self, t: int, theta: Array, probes: Records | None, before: Any) -> Any:
        return before if isinstance(before, Geometry) else Geometry(self.first(theta.shape[-1] - 1))

    def first(self, features: int) -> Array:
        """The map before the first stage."""
        return np.eye(features + 1, dtype=np.float32)

    def _mean(self, share: float, spread: float | None) -> Mean:
        known = self.statistics is not None
        return Mean(
            share=share,
            radius=self.radii[0],
            nonnegative=known if self.nonnegative is None else self.nonnegative,
            spread=spread,
            statistics=self.statistics,
        )


@dataclass(frozen=True, kw_only=True)
class Private(Mapped):
    r"""Records are centred and whitened by a noisy mean and covariance, both charged.

    Attributes:
        mean_share: the part of $\mu^2$ that the mean spends.
        covariance_share: that of the covariance.
    """

    name: ClassVar[str] = "private"
    mean_share: float = 0.03
    covariance_share: float = 0.07

    @property
    def stages(self) -> tuple[Stage, ...]:
        covariance = Covariance(share=self.covariance_share, radius=self.radii[1])
        return (self._mean(self.mean_share, None), covariance)


@dataclass(frozen=True, kw_only=True)
class Centre(Mapped):
    r"""Records are centred by a noisy mean, which is charged, and scaled by the public radius.

    Attributes:
        mean_share: the part of $\mu^2$ that the mean spends.
    """

    name: ClassVar[str] = "centre"
    mean_share: float = 0.03

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (self._mean(self.mean_share, self.radii[1]),)


@dataclass(frozen=True, kw_only=True)
class Public(Mapped):
    """Records are centred and whitened by public images' statistics, which cost nothing."""

    name: ClassVar[str] = "public"

    def __post_init__(self) -> None:
        require(
            self.statistics is not None,
            "statistics: a value is missing; public statistics are there for resnet20-cifar100",
        )
        super().__post_init__()

    def first(self, features: int) -> Array:
        assert self.statistics is not None
        known = of_size(public_statistics(self.statistics), features)
        return affine(whitening(known.covariance, 0.0, known.centred_radius, 1e-3), known.mean)
