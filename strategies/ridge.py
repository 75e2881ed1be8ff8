r"""A head in one shot: noisy moments of the classes, and linear discriminant analysis of them.

Nothing is trained. After the mean, by which a transform centres the records, clients release once,
in one joint stage, their second moments, the sums of each class and how many records it has. The
server solves for the head. It depends on no partition, and takes no rate, clip or rounds.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.sums import Adjacency, BoundedSum
from fedsofim.models.head import features_of
from fedsofim.models.moments import Features
from fedsofim.models.records import Records
from fedsofim.strategies.rule import Empty, Rule, ServerState
from fedsofim.strategies.stage import (
    Stage,
    acute_sensitivity,
    check_radius,
    symmetric,
    triangle,
)


class Moments(NamedTuple):
    """What is known of the classes, as means over all records.

    Attributes:
        second: of all records, `(F, F)`.
        sums: of each class, `(K, F)`.
        parts: which part of the records each class has, `(K,)`.
    """

    second: Array
    sums: Array
    parts: Array


def discriminants(known: Moments, std: float, std_parts: float) -> Array:
    r"""The head `(K, F+1)` of linear discriminant analysis, from noisy moments.

    With $p$ the classes' parts, $M$ their means and $c$ that of all, the covariance within classes
    is $S_w = S - cc^\top - \sum_k p_k M_kM_k^\top$, M about c. Noise can push its eigenvalues below
    zero, where they are set to zero; $\lambda$, half the noise's spectral norm, is added. Then
    $W = M(S_w + \lambda I)^{-1}$, and the bias is $\log p - \tfrac12 W{\cdot}M - Wc$.

    Args:
        known: the moments.
        std: of the noise on the diagonal of the second ones; off it, less by $\sqrt2$.
        std_parts: of the noise on the classes' parts; if they are mostly noise, all are alike.
    """
    F, K = len(known.second), len(known.parts)
    p = np.maximum(known.parts, 0.2 / K) if std_parts < 0.5 / K else np.ones(K)
    p = p / p.sum()
    c = known.sums.sum(axis=0)
    M = (known.sums - np.outer(p, c)) / p[:, None]
    S = known.second - np.outer(c, c)
    w, V = np.linalg.eigh(S - (M.T * p) @ M)
    least = 0.5 * std * math.sqrt(2 * F) + 1e-4 * max(float(np.trace(S)) / F, 1e-9)
    W = M @ ((V / (np.maximum(w, 0) + least)) @ V.T)
    bias = np.log(p) - (W * M).sum(axis=1) / 2 - W @ c
    return np.column_stack([W, bias])


@dataclass(frozen=True, kw_only=True)
class Joint(Stage):
    r"""The sums of $cc^\top$, $e_yc^\top$ and $e_y$, of records c clipped to norm R and labels y.

    **Claim.** With noise of std s on the first (as `triangle` has it), $s/a$ on the second and
    $s/b$ on the third, $a = \alpha R$ and $b = a^2/2$, all three cost what $v = (cc^\top,
    a\,e_yc^\top, b\,e_y)$ with std s would, and replacing a record moves v by at most
    $\sqrt2\,R^2(1 + \alpha^2/2)$, adding or removing one by $R^2(1 + \alpha^2/2)$.

    *Proof.* Let d be another record and $u = c^\top d$. $|v| = |c|^2 + a^2/2$, for its square is
    $|c|^4 + a^2|c|^2 + b^2$. The inner product of v and v' is $u^2 + a^2u + b^2 = (u + a^2/2)^2$ if
    the records are of one class, and $u^2$ if of two: never negative (`acute_sensitivity`). The
    classes' sizes are thus free.

    Attributes:
        radius: R over the root of the number of features, the norm that mapped records have.
        alpha: how much the classes' sums weigh beside the second moments.
    """

    name: ClassVar[str] = "class moments"
    radius: float = 1.0
    alpha: float = 1.0

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"P"})

    @property
    def scale(self) -> float:
        return self.radius**2

    def length(self, features: int, classes: int) -> int:
        return features * (features + 1) // 2 + classes * (features + 1)

    def unit_sensitivity(self, adjacency: Adjacency) -> float:
        return acute_sensitivity(adjacency) * (1 + self.alpha**2 / 2)

    def summed(self, records: Records | Features, exact: bool) -> tuple[BoundedSum, ...]:
        second, sums, counts = features_of(records).class_moments(self.radius, exact)
        # Noise goes with bounds: they are R^2 / a and R^2 / b, whatever one record may add.
        return (
            *triangle(second),
            BoundedSum(sums.value.ravel(), sums.bound / self.alpha, sums.unit),
            BoundedSum(counts.value, counts.bound * 2 / self.alpha**2, counts.unit),
        )

    def fold(self, state: ServerState, G: Array, std: float) -> ServerState:
        K, F = state.theta.shape[0], state.theta.shape[1] - 1
        second, sums, parts = np.split(G.astype(np.float64), np.cumsum([F * (F + 1) // 2, K * F]))
        known = Moments(symmetric(second, F), sums.reshape(K, F), parts)
        b = (self.alpha * self.radius) ** 2 / 2
        theta = discriminants(known, std, std / b)
        theta[:, :F] /= math.sqrt(F)
        return state._replace(theta=theta.astype(state.theta.dtype))


@dataclass(frozen=True, kw_only=True)
class Ridge(Rule):
    r"""A head from noisy moments of centred records, in one shot.

    Its rounds are empty: one is enough, and shows the model.

    Attributes:
        share: the part of the budget, of $\mu^2$, that the moments spend, beside what the
            transform's stages do. Nothing else is released, so shares are relative to their sum.
        radius: as in `Joint`.
        alpha: as in `Joint`.
    """

    client: ClassVar[str | type] = "silent"

    share: float = 0.9
    radius: float = 1.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.share < 1, f"share={self.share}: must be between 0 and 1")
        check_radius("radius", self.radius)
        require(0.01 <= self.alpha <= 2, f"alpha={self.alpha}: must be between 0.01 and 2")

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (Joint(share=self.share, radius=self.radius, alpha=self.alpha),)

    def release_shape(self, theta: Array) -> tuple[int, ...]:
        """The shape of what one client releases in a round: nothing."""
        return (0,)

    def init(self, theta: Array) -> Empty:
        return Empty()

    def update(self, buffers: Empty, G: Array, t: int, rounds: int) -> tuple[Empty, Array]:
        return buffers, np.zeros((), G.dtype)
