r"""Private geometry: records are centred and whitened before the clip, by noisy statistics.

Features of a backbone share most of their norm: their mean. A clip is then spent on what all
records have in common. `Mean` releases it once, `Covariance` the second moments about it, and every
record goes through $x \to U(x - m)$ from then on, as $\tilde z = P\tilde x$ with
$P = \begin{pmatrix}U & -Um\\ 0 & 1\end{pmatrix}$. The clip comes after it, so privacy holds for any
P, whoever sends it. The model is one for records as they are: $\theta P$.

docs/geometry.md has the proofs and the numbers.
"""

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.shipped import shipped
from fedsofim.core.sums import Adjacency, BoundedSum
from fedsofim.models.head import features_of
from fedsofim.models.moments import Features
from fedsofim.models.records import Records
from fedsofim.strategies.rule import ServerState
from fedsofim.strategies.stage import Stage, acute_sensitivity, symmetric, triangle


class Geometry(NamedTuple):
    """The map of all records, `(F+1, F+1)`, bias last."""

    P: Array


class Statistics(NamedTuple):
    """What is known of a backbone's features from public images.

    Attributes:
        mean: `(F,)`.
        covariance: `(F, F)`.
        radius: the median norm.
        centred_radius: the median norm about the mean.
    """

    mean: Array
    covariance: Array
    radius: float
    centred_radius: float


@lru_cache(maxsize=4)
def public_statistics(name: str) -> Statistics:
    """The public statistics that come with the weights of this name."""
    # The name may come from a server, and must not lead out of the folder.
    file = shipped("data/weights") / f"{name}-public.npz"
    good = re.fullmatch("[a-z0-9-]+", name) is not None and file.is_file()
    require(good, f"transform.statistics={name}: there are none; give transform.radius instead")
    with np.load(file, allow_pickle=False) as saved:
        mean, covariance = (saved[k].astype(np.float64) for k in ("mean", "covariance"))
        return Statistics(mean, covariance, float(saved["radius"]), float(saved["centred_radius"]))


def of_size(known: Statistics, features: int) -> Statistics:
    """The statistics, if records have as many features."""
    require(
        len(known.mean) == features,
        f"transform.statistics: of {len(known.mean)} features, and records have {features}",
    )
    return known


def affine(U: Array, m: Array) -> Array:
    """The map `x -> U (x - m)` of records with a last 1."""
    F = len(m)
    P = np.eye(F + 1)
    P[:F, :F], P[:F, F] = U, -U @ m
    return P.astype(np.float32)


def then(state: ServerState, P: Array) -> ServerState:
    """The state in which records that are mapped go through P as well."""
    whole = P.astype(np.float64) @ state.shared.P
    return state._replace(shared=Geometry(whole.astype(np.float32)))


def shrunk(mean: Array, prior: Array, std: float) -> Array:
    r"""James and Stein's estimate: the noisy mean, moved to the prior by what noise must explain.

    $m = p + (\tilde m - p)\,\max(0, 1 - (F-2)s^2/|\tilde m - p|^2)$.
    """
    gap = mean - prior
    square = float(gap @ gap)
    kept = max(0.0, 1 - (len(gap) - 2) * std**2 / square) if square else 0.0
    return np.asarray(prior + gap * min(1.0, kept))


def whitening(S: Array, std: float, radius: float, damping: float = 1e-4) -> Array:
    r"""$s\,(S_+ + \lambda I)^{-1/2}$ of a noisy covariance, where the noise's std is known.

    $\lambda$ is the noise's spectral norm, $\sigma\sqrt{2F}$, so directions that noise may have
    made are not blown up. The scale s makes the mean square norm F, by a covariance that is shrunk
    to a multiple of I by the part of it that noise explains (Ledoit & Wolf 2004): where all is
    noise, U is a multiple of I, and the map only centres.

    Args:
        S: the covariance, `(F, F)`.
        std: $\sigma$, of the noise on its diagonal; off it, less by $\sqrt2$.
        radius: the clip of a centred record, which bounds the trace.
        damping: what else $\lambda$ has, over the mean eigenvalue.
    """
    F = len(S)
    w, V = np.linalg.eigh(S)
    kept = np.maximum(w, 0)
    most = radius**2 / F
    average = min(max(float(np.trace(S)) / F, 1e-3 * most), most)
    spread = float(((S - average * np.eye(F)) ** 2).sum())
    noise = std**2 * F * (F + 1) / 2
    a = min(1.0, noise / spread) if spread else 1.0
    damped = kept + std * math.sqrt(2 * F) + damping * average
    square = float(((a * average + (1 - a) * kept) / damped).sum())
    return np.asarray((V / np.sqrt(damped)) @ V.T * math.sqrt(F / square))


@dataclass(frozen=True, kw_only=True)
class Mean(Stage):
    r"""The sum of features clipped to norm R.

    Replacing a record moves it by at most 2R; by $\sqrt2\,R$ if features are not negative
    (`acute_sensitivity`). Adding or removing one: R.

    Attributes:
        radius: R.
        nonnegative: negative features are set to zero, before the clip.
        spread: the norm of a centred record, if the map is to scale it to the root of F.
        statistics: where the public mean is, to which the noisy one is shrunk; 0 if nowhere.
        scaled: whether R is that of records whose norms a stage before has scaled.
    """

    name: ClassVar[str] = "mean"
    radius: float
    nonnegative: bool = False
    spread: float | None = None
    statistics: str | None = None
    scaled: bool = False

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"P"} if self.scaled else ())

    @property
    def scale(self) -> float:
        return self.radius

    def length(self, features: int, classes: int) -> int:
        return features

    def unit_sensitivity(self, adjacency: Adjacency) -> float:
        signed = adjacency == "replace-one" and not self.nonnegative
        return 2.0 if signed else acute_sensitivity(adjacency)

    def summed(self, records: Records | Features, exact: bool) -> tuple[BoundedSum, ...]:
        floor = 0.0 if self.nonnegative else None
        return (features_of(records).feature_sum(self.radius, exact, floor),)

    def fold(self, state: ServerState, G: Array, std: float) -> ServerState:
        F, known = len(G), self.statistics
        prior = np.zeros(F) if known is None else of_size(public_statistics(known), F).mean
        m = shrunk(G.astype(np.float64), prior, std)
        size = 1.0 if self.spread is None else math.sqrt(F) / self.spread
        return then(state, affine(size * np.eye(F), m))


@dataclass(frozen=True, kw_only=True)
class Covariance(Stage):
    r"""The sum of $cc^\top$ of centred features, clipped to norm R.

    One record moves it by at most $\sqrt2\,R^2$ when replaced, $R^2$ when added or removed.

    Attributes:
        radius: R.
    """

    name: ClassVar[str] = "covariance"
    radius: float

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"P"})

    @property
    def scale(self) -> float:
        return self.radius**2

    def length(self, features: int, classes: int) -> int:
        return features * (features + 1) // 2

    def unit_sensitivity(self, adjacency: Adjacency) -> float:
        return acute_sensitivity(adjacency)

    def summed(self, records: Records | Features, exact: bool) -> tuple[BoundedSum, ...]:
        return triangle(features_of(records).second_moment(self.radius, exact))

    def fold(self, state: ServerState, G: Array, std: float) -> ServerState:
        F = len(state.shared.P) - 1
        U = whitening(symmetric(G, F), std, self.radius)
        return then(state, affine(U, np.zeros(F)))
