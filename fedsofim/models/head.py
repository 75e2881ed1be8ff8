r"""A linear softmax head on frozen features, with per-example clipping in closed form.

The gradient of one example is a rank-one matrix, $g = (p - e_y)\,\tilde x^\top$, so its norm is
$\lVert p - e_y\rVert\,\lVert\tilde x\rVert$ and the sum of clipped gradients is one weighted matrix
product: no per-example gradient is ever formed.

The same holds under a pre-clipping transform $g \to U_G\,g\,U_A$: the norm becomes
$\lVert U_G(p - e_y)\rVert\,\lVert U_A^\top\tilde x\rVert$, and the sum is transformed as a whole.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike

from fedsofim.core.arrays import Array, Scale
from fedsofim.core.errors import require
from fedsofim.core.sums import BoundedSum
from fedsofim.models import crowd, exact_sums
from fedsofim.models.coded import Columns, OneHot, Rows
from fedsofim.models.maps import mapped, mapped_norms, similar, triangle
from fedsofim.models.moments import Features, norms
from fedsofim.models.records import Covariances, Factors, Records
from fedsofim.models.scores import judge

try:
    from fedsofim_kernel import clipped_residuals  # kernel.c
except ImportError:  # it was installed without a compiler
    clipped_residuals = None

# Columns worked on at a time, and logits: they and the features then stay in the L2 cache.
CHUNK, LOGITS = 1280, 160_000
LANES = 16  # chunks are multiples of it, so that rows of logits begin where vectors do
WHOLE = 4096  # examples whose sums are added up: CHUNK of client.c


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
        for start in range(0, self.size, size):
            yield self.part(slice(start, start + size))

    def with_transform(self, factors: Factors) -> "Examples":
        """The same examples, whose gradients are transformed before they are clipped."""
        U_G, U_A, before = factors.U_G, factors.U_A, self.transformed
        if before is not None and (before.U_A is U_A or np.array_equal(before.U_A, U_A)):
            return self._replace(transformed=before._replace(U_G=U_G))
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

    def through(self, P: Array | None, exact: bool = True, T: Array | None = None) -> "Examples":
        """The examples under `x -> P x`, whatever map they were under; `None` for no map.

        The clip comes later, so any P leaves a record's influence bounded. If `exact`, they are
        mapped, and what becomes of a record depends on no other, to the last bit; else they are
        seen through P, which is fast, for simulations. T is `triangle(P)`, if it is known.
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
            norm = mapped_norms(triangle(P) if T is None else T, raw.x)
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
        factors = None if t is None else Factors(t.U_G, t.U_A)
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
        G = np.zeros((theta.shape[-2],) * 2)
        A = np.zeros((theta.shape[-1],) * 2)
        for batch in self.chunks(CHUNK):
            r, x = residual(theta, batch).astype(np.float64), batch.x.astype(np.float64)
            G += r @ r.T
            A += x @ x.T
        return [Covariances(G / self.size, A / self.size)]


def examples(features: Array | Rows, labels: Array, classes: int) -> Examples:
    """Prepare `(N, F)` features and `(N,)` integer labels for the head."""
    if isinstance(features, Rows):
        few = labels.astype(np.min_scalar_type(classes - 1))
        lazy, hot = cast(Array, Columns(features)), cast(Array, OneHot(few, classes))
        return Examples(lazy, hot, norms(lazy))
    n = len(features)
    x = np.ones((features.shape[1] + 1, n), dtype=features.dtype)
    x[:-1] = features.T
    target = np.zeros((classes, n), dtype=x.dtype)
    target[labels, np.arange(n)] = 1
    return Examples(x, target, norms(x))


def all_through(data: Sequence[Examples], P: Array | None, exact: bool) -> list[Examples]:
    """Each client's examples under `x -> P x`."""
    seen = P is None or exact or all(D.is_through(P) for D in data)
    T = None if P is None or seen else triangle(P)  # for all of them
    return [D.through(P, exact, T) for D in data]


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


def residual(theta: Array, batch: Examples) -> Array:
    """`softmax(theta x) - onehot(y)` of each example, `(..., K, N)` for `theta` `(..., K, F+1)`."""
    r = np.empty((*theta.shape[:-1], batch.size), theta.dtype)
    _residual(theta, batch, r)
    return r


def _logits(theta: Array, x: Array, out: Array) -> None:
    """Write `theta x` to `out`, in one matrix product for a whole stack of heads."""
    np.matmul(theta.reshape(-1, len(x)), x, out=out.reshape(-1, x.shape[1]))


def _aligned(size: int, dtype: DTypeLike) -> Array:
    """An empty array that begins where a cache line does."""
    size *= np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][:size].view(dtype)


def _residual(theta: Array, batch: Examples, out: Array, shift: bool = False) -> bool:
    """Write the residual to `out`.

    Logits are shifted to have their maximum at 0 only if that is asked for, or if their
    exponentials leave the range that float32 holds well; whether they were is returned.
    """
    _logits(theta, batch.x, out)
    if shift:
        out -= out.max(axis=-2, keepdims=True)
        out[out < -40] = -np.inf  # exactly 0 in the end, not a slow, subnormal number
    with np.errstate(over="ignore"):
        np.exp(out, out=out)
        s = np.add.reduce(out, axis=-2, keepdims=True)
    if not shift and s.size and not (s.min() > 1e-30 and s.max() < 1e30):
        return _residual(theta, batch, out, shift=True)
    out *= np.reciprocal(s, out=s)
    out -= batch.target
    return shift


def clipped_gradient_sum(theta: Array, data: Examples, clip: Scale) -> Array:
    """The sum over all examples of the gradient, transformed if asked, clipped to norm `clip`.

    Replacing one example moves it by at most `2 clip`, adding or removing one by `clip`, up to the
    rounding of float32, which a transform magnifies: it is for simulations, see `exact_sums`. An
    example whose gradient is not finite, or too large to be clipped with care, contributes zero.

    Args:
        theta: parameters, `(K, F+1)`, or a stack of heads `(S, K, F+1)`.
        data: the examples.
        clip: the largest norm of one gradient; `inf`: no clipping; or one a head, `(S, 1, 1)`.

    Returns:
        The sum, of the shape of `theta`.
    """
    way, t = _by_kernel if crowd.takes(theta, data) else _by_products, data.transformed
    return crowd.transformed(way(crowd.for_raw(theta, t), data, clip), t)


def _by_kernel(theta: Array, data: Examples, clip: Scale) -> Array:
    """The sum before it is transformed; of examples that become arrays in parts, as of others."""
    total, start = np.zeros_like(theta), 0
    while start < data.size:
        whole = not data.lazy or data.size - start <= WHOLE + crowd.SMALL
        end = data.size if whole else start + WHOLE
        total += crowd.plain_sums(theta[None], [data.part(slice(start, end))], clip)[0]
        start = end
    return total


def _by_products(theta: Array, data: Examples, clip: Scale) -> Array:
    """The same with NumPy's products."""
    *heads, K, width = theta.shape
    S, t = math.prod(heads), data.transformed
    rows, C = S * K, np.minimum(clip, np.finfo(theta.dtype).max)
    size = max(LANES, min(CHUNK, LOGITS // rows // LANES * LANES))
    total, shift = np.zeros((rows, width), theta.dtype), False
    buffer, U = _aligned(rows * size, theta.dtype), None
    compiled = clipped_residuals and theta.dtype == data.x.dtype == np.float32
    if compiled:  # the same for one head as for a stack
        C = np.full(S, np.ravel(C), np.float32)
        U = None if t is None or t.U_G is None else np.full((S, K, K), t.U_G, np.float32)
    for batch in data.chunks(size):
        x, r = batch.x, buffer[: rows * batch.size].reshape(*heads, K, batch.size)
        if compiled:
            _logits(theta, x, r)
            norm = batch.norm if batch.transformed is None else batch.transformed.norm
            lost = clipped_residuals(r.reshape(S, K, -1), batch.target, norm, C, U)
        else:
            shift = _residual(theta, batch, r, shift)
            lost = _clip(r, batch, C)
        if lost:
            x = np.where(np.isfinite(x), x, 0)  # 0 times infinity is not 0
        total += r.reshape(rows, -1) @ x.T
    return total.reshape(theta.shape)


def _clip(r: Array, batch: Examples, C: Scale) -> bool:
    """Scale residuals to those of clipped gradients; whether some are 0, as they were too large."""
    t, u, norm = batch.transformed, r, batch.norm
    if t is not None:
        u, norm = r if t.U_G is None else t.U_G @ r, t.norm
    w = norms(u)[..., None, :]
    w *= norm
    np.divide(C, np.maximum(w, C, out=w), out=w)  # min(1, C / ||g||)
    r *= w
    least = np.finfo(r.dtype).tiny / np.finfo(r.dtype).eps
    if t is None and w.min() >= least:
        return False
    lost = ~(np.abs(r).max(axis=-2, keepdims=True) >= least)  # it would lose digits, or is NaN
    np.copyto(r, 0, where=lost)
    return bool(lost.any())
