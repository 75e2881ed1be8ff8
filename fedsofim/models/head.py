r"""A linear softmax head on frozen features, with per-example clipping in closed form.

The gradient of one example is a rank-one matrix, $g = (p - e_y)\,\tilde x^\top$, so its norm is
$\lVert p - e_y\rVert\,\lVert\tilde x\rVert$ and the sum of clipped gradients is one weighted matrix
product: no per-example gradient is ever formed.

The same holds under a pre-clipping transform $g \to U_G\,g\,U_A$: the norm becomes
$\lVert U_G(p - e_y)\rVert\,\lVert U_A^\top\tilde x\rVert$, and the sum is transformed as a whole.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np

from fedsofim.core.arrays import Array, Scale, of_the_last
from fedsofim.core.errors import require
from fedsofim.core.sums import BoundedSum
from fedsofim.models import crowd, exact_sums
from fedsofim.models.coded import Columns, OneHot, Rows, blocks
from fedsofim.models.head_sums import CHUNK, clipped_gradient_sum, residual, rows
from fedsofim.models.maps import mapped, mapped_norms, similar, triangle
from fedsofim.models.moments import Features, norms
from fedsofim.models.records import Covariances, Factors, Records
from fedsofim.models.scores import judge


class Transformed(NamedTuple):
    """A transform, and what it does to some examples.

    Examples that are seen through a map, `x -> P x`, need not be mapped: their logits are those of
    `theta P`, and their gradients are those of raw ones, times `P^T`.

    Attributes:
        U_G: its factor on the side of the outputs, `(K, K)`, or `(S, K, K)` for a stack of heads;
            `None` for the identity.
        U_A: its factor on the side of the features, `(F+1, F+1)`.
        norm: the Euclidean norm of `U_A^T x` of each example, `(N,)`.
        P: the map, if it is one; `U_A` is its transpose.
    """

    U_G: Array | None
    U_A: Array
    norm: Array
    P: Array | None = None


class Raw(NamedTuple):
    """What examples were before they were mapped exactly, and the map P, `(F+1, F+1)`."""

    P: Array
    x: Array
    norm: Array


class Examples(NamedTuple):
    """Labelled examples, ready for the head; examples are columns, so that slices are views.

    Of many examples, `x` and `target` may be what only becomes arrays in parts: see `coded`.

    Attributes:
        x: features with a last row of ones for the bias, `(F+1, N)`.
        target: one-hot labels, `(K, N)`.
        norm: the Euclidean norm of each column of `x`, `(N,)`.
        transformed: the transform that gradients go through before they are clipped, if any.
        raw: what they were, if they were mapped; parts of them do not keep it.
    """

    x: Array
    target: Array
    norm: Array
    transformed: Transformed | None = None
    raw: Raw | None = None

    @property
    def size(self) -> int:
        """How many examples there are."""
        return int(self.x.shape[1])

    @property
    def lazy(self) -> bool:
        """Whether they become arrays in parts only."""
        return not isinstance(self.x, np.ndarray)

    @property
    def labels(self) -> Array:
        """The class of each example, `(N,)`."""
        numbers = np.arange(len(self.target), dtype=self.target.dtype)
        return np.asarray((numbers @ self.target).astype(np.intp))  # faster than argmax

    def part(self, which: slice | Array) -> "Examples":
        """Some of the examples: views of neighbours, else dense copies."""
        neighbours = isinstance(which, slice) and which.step is None
        take = np.asarray if neighbours else np.ascontiguousarray
        x, target, norm = (take(a[..., which]) for a in self[:3])
        t = self.transformed
        if t is not None:
            t = t._replace(norm=take(t.norm[which]))
        return Examples(x, target, norm, t)

    def chunks(self, size: int) -> Iterator["Examples"]:
        """Views of at most `size` examples each, in order."""
        if 0 < self.size <= size and not self.lazy:
            yield self
            return
        for start in range(0, self.size, size):
            yield self.part(slice(start, start + size))

    def with_transform(self, factors: Factors) -> "Examples":
        """The same examples, whose gradients are transformed before they are clipped."""
        U_G, U_A, before = factors.U_G, factors.U_A, self.transformed
        if before is not None and (before.U_A is U_A or np.array_equal(before.U_A, U_A)):
            if before.U_G is U_G:
                return self
            same = Transformed(U_G, before.U_A, before.norm, before.P)
            return Examples(self.x, self.target, self.norm, same, self.raw)
        norm = np.empty_like(self.norm)
        for start in range(0, self.size, CHUNK):
            part = slice(start, start + CHUNK)
            v = U_A.T @ self.x[:, part]
            norm[part] = norms(v)
        return self._replace(transformed=Transformed(U_G, U_A, norm))

    @property
    def map(self) -> Array | None:
        """The map that they are seen through, or were mapped by."""
        if self.raw is not None:
            return self.raw.P
        return None if self.transformed is None else self.transformed.P

    def is_through(self, P: Array) -> bool:
        """Whether the examples are under the map `x -> P x`."""
        before = self.map
        return before is P or (before is not None and np.array_equal(before, P))

    def through(self, P: Array | None, exact: bool = True) -> "Examples":
        """The examples under `x -> P x`, whatever map they were under; `None` for no map.

        The clip comes later, so any P leaves a record's influence bounded. If `exact`, they are
        mapped, and what becomes of a record depends on no other, to the last bit; else they are
        seen through P, which is fast, for simulations.
        """
        raw = self
        if P is not None and self.is_through(P) and exact == (self.raw is not None):
            return self
        if self.map is not None:
            x, norm = (self.x, self.norm) if self.raw is None else self.raw[1:]
            raw = Examples(x, self.target, norm)
        if P is None:
            return raw
        with np.errstate(over="ignore", invalid="ignore"):
            if exact:
                z = exact_sums.mapped(P, raw.x)
                return Examples(z, self.target, norms(z), raw=Raw(P, raw.x, raw.norm))
            norm = mapped_norms(triangle(P), raw.x)
        return raw._replace(transformed=Transformed(None, P.T, norm, P))

    @property
    def features(self) -> Features:
        """The features alone, for sums over them."""
        if self.transformed is not None and self.transformed.P is not None:
            return self.features_through(self.transformed.P)
        return Features(self.x[:-1], np.asarray(self.target), self.norm)

    def features_through(self, P: Array) -> Features:
        """The features as they are after the map, fast, for a sum over them.

        Where P moves and scales all alike, that is left to the sum, and no record is mapped.
        """
        raw = self.through(None)
        if (scale := similar(P)) is not None:
            shift = (P[:-1, -1] / scale).astype(raw.x.dtype)
            return raw.features._replace(shift=shift if shift.any() else None, scale=scale)
        with np.errstate(over="ignore", invalid="ignore"):
            z = mapped(np.asarray(P, raw.x.dtype), np.asarray(raw.x))
            return Features(z[:-1], np.asarray(self.target))

    def gradient_sum(self, theta: Array, clip: Scale, exact: bool = False) -> BoundedSum:
        """The sum of these examples' clipped gradients, in integers if it must be exact."""
        if not exact or np.isinf(clip).all():  # without a clip there is no bound to prove
            return BoundedSum(clipped_gradient_sum(theta, self, clip), clip)
        t = self.transformed
        if t is not None and t.P is not None:
            return self.through(t.P).gradient_sum(theta, clip, exact)
        factors = None if t is None or t.U_G is None else Factors(t.U_G, t.U_A)
        return exact_sums.gradient_sum(theta, self.x, self.target, clip, factors)

    def unit(self, clip: Scale) -> float:
        """What 1 stands for in an exact gradient sum."""
        return exact_sums.grid(clip, exact_sums.GRADIENT_BITS)[1]

    def logits(self, theta: Array) -> Array:
        """The head's outputs, `(N, K)`."""
        return np.asarray((crowd.for_raw(theta, self.transformed) @ self.x).T)

    def evaluate(self, theta: Array) -> tuple[float, float]:
        """Accuracy and mean cross-entropy on these examples."""
        seen = judge(self.logits(theta), self.labels)
        return seen.accuracy, seen.loss

    def predict(self, theta: Array) -> Array:
        """The most likely class of each example, `(..., N)` for `theta` `(..., K, F+1)`."""
        raw = crowd.for_raw(theta, self.transformed)
        return np.concatenate([(raw @ b.x).argmax(axis=-2) for b in self.chunks(CHUNK)], axis=-1)

    def curvature(self, theta: Array) -> list[Covariances]:
        r"""The Kronecker factors $E[rr^\top]$ and $E[\tilde x\tilde x^\top]$ of these examples."""
        if self.transformed is not None and self.transformed.P is not None:
            return self.through(self.transformed.P).curvature(theta)
        G = np.zeros((len(theta), len(theta)))
        for batch in self.chunks(4 * CHUNK):  # most probes are one
            moment = crowd.residual_moment(theta, batch)
            if moment is None:
                r = residual(theta, batch).astype(np.float64)
                moment = r @ r.T
            G += moment
        return [Covariances(G / self.size, _input_moment(self.x))]


@of_the_last
def _input_moment(x: Array) -> Array:
    r"""The mean of $xx^\top$ over columns, in float64: probes stay, so theirs does."""
    parts = (x[:, part].astype(np.float64) for part in blocks(x.shape[1], CHUNK))
    return np.asarray(sum(part @ part.T for part in parts) / x.shape[1])


def examples(features: Array | Rows, labels: Array, classes: int) -> Examples:
    """Prepare `(N, F)` features and `(N,)` integer labels for the head."""
    good = not len(labels) or 0 <= labels.min() <= labels.max() < classes
    require(bool(good), f"labels: must be from 0 to {classes - 1}")
    if isinstance(features, Rows):
        few = labels.astype(np.min_scalar_type(classes - 1))
        lazy, hot = cast(Array, Columns(features)), cast(Array, OneHot(few, classes))
        return Examples(lazy, hot, norms(lazy))
    n = len(features)
    x = rows(features.shape[1] + 1, n, features.dtype)
    x[:-1], x[-1] = features.T, 1
    target = rows(classes, n, x.dtype)
    target[:] = 0
    target[labels, np.arange(n)] = 1
    return Examples(x, target, norms(x))


def examples_of(records: Records | Features) -> Examples:
    """The examples that some records are, where the model is known to be a head."""
    require(isinstance(records, Examples), "this needs model=head: it reads features")
    assert isinstance(records, Examples)
    return records


def features_of(records: Records | Features) -> Features:
    """The features of some records, where the model is known to be a head."""
    return records if isinstance(records, Features) else examples_of(records).features


def init(rng: np.random.Generator, classes: int, features: int) -> Array:
    """Initial parameters `(K, F+1)`, Gaussian with std `0.5 sqrt(2 / (F + 1 + K))`, bias last."""
    std = 0.5 * math.sqrt(2 / (features + 1 + classes))
    return std * rng.standard_normal((classes, features + 1)).astype(np.float32)
