"""Transforms that map records, by private or public statistics; `stages.py` says how."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.models.records import Records
from fedsofim.strategies.stage import Stage, check_radius
from fedsofim.transforms.kfc import Transform
from fedsofim.transforms.norms import CentredNorms, Norms
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
    r"""A transform that maps records.

    Attributes:
        statistics: the weights whose public statistics say what norms are usual, and where the
            mean may be.
        radius: the clip of a record's features for the mean, instead of the public median norm.
        centred_radius: the clip of centred features; by default the public one, or `radius`.
        norms_share: the part of $\mu^2$ that each of two releases spends which find these norms,
            where neither statistics nor a radius tell them.
        nonnegative: whether features are not negative, which halves the mean's variance of noise;
            by default they are not where they are those of the known weights.
    """

    name: ClassVar[str] = "mapped"
    maps: ClassVar[bool] = True
    statistics: str | None = None
    radius: float | None = None
    centred_radius: float | None = None
    nonnegative: bool | None = None
    norms_share: float = 0.005

    def __post_init__(self) -> None:
        for name in ("radius", "centred_radius"):
            given = getattr(self, name)
            if given is not None:
                check_radius(name, given)
        require(
            self.centred_radius is None or not self.searches,
            f"centred_radius={self.centred_radius}: give radius as well, or neither",
        )
        if self.statistics is not None:
            public_statistics(self.statistics)

    @property
    def searches(self) -> bool:
        """Whether what norms are usual is to be found by a release."""
        return self.statistics is None and self.radius is None

    @property
    def radii(self) -> tuple[float, float]:
        """The clips of features, and of centred features; 1 where norms are scaled to it."""
        if self.searches:
            return 1.0, 1.0
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
            scaled=self.searches,
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
        mean = self._mean(self.mean_share, None)
        covariance = Covariance(share=self.covariance_share, radius=self.radii[1])
        if not self.searches:
            return (mean, covariance)
        norms, centred = (kind(share=self.norms_share) for kind in (Norms, CentredNorms))
        return (norms, mean, centred, covariance)


@dataclass(frozen=True, kw_only=True)
class Centre(Mapped):
    r"""Records are centred by a noisy mean, which is charged, and scaled by the usual norm.

    Attributes:
        mean_share: the part of $\mu^2$ that the mean spends.
    """

    name: ClassVar[str] = "centre"
    mean_share: float = 0.03

    @property
    def stages(self) -> tuple[Stage, ...]:
        if not self.searches:
            return (self._mean(self.mean_share, self.radii[1]),)
        centred = CentredNorms(share=self.norms_share, root=True)
        return (Norms(share=self.norms_share), self._mean(self.mean_share, None), centred)


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
