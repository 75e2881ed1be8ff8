"""The clipped gradient sums of many clients at once.

The kernel takes all of them in one call, so threads that work on clients seldom wait for Python's
lock. Clients with few examples and with many are worked on differently; which of the two it is
depends on the client's own size, so its sum has the same bits in every company. What the kernel
does not take is left to `head.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsofim.core.arrays import Array, Scale
from fedsofim.core.threads import thread_count

if TYPE_CHECKING:
    from fedsofim.models.head import Examples, Transformed

try:
    from fedsofim_kernel import HAS_VECTORS, clipped_sums, transform_sums  # crowd.c
except ImportError:  # it was installed without a compiler
    HAS_VECTORS = clipped_sums = transform_sums = None

# As many examples are few; so many numbers of one head are too many: BLAS is faster.
SMALL, LARGE_HEAD = 32, 1 << 15


def takes(theta: Array, data: "Examples") -> bool:
    """Whether the kernel takes a client's examples, if need be in parts."""
    good = clipped_sums and theta.dtype == data.x.dtype == np.float32
    size = theta.shape[-2] * theta.shape[-1]
    return bool(good and size <= LARGE_HEAD and (HAS_VECTORS or data.x.shape[1] <= SMALL))


@dataclass
class Run:
    """Neighbours that are alike: whom the kernel takes in one call, or whom it does not take.

    Attributes:
        which: where they stand.
        x: their features, for the kernel; and so are the others.
        target: their labels.
        norm: the norms of their examples, under the transform, if any.
        transformed: the transform, with the norms of the first.
        taken: whether the kernel takes them.
        held: what the kernel has looked up of them, from its first call on.
        left: what the kernel multiplies residuals by: see `left_factors`.
        right: the transform's factor on the side of the features.
    """

    which: slice
    x: list[Array]
    target: list[Array]
    norm: list[Array]
    transformed: "Transformed | None"
    taken: bool
    held: Any = None
    left: "Left" = (None, None)
    right: Array | None = None

    def under(self, data: "Sequence[Examples]") -> "Run | None":
        """The same, now that only `U_G` is another; `None` if more has changed."""
        before, now, G = self.transformed, data[self.which.start].transformed, self.left[1]
        if before is None or now is None or now.P is not None or G is None:
            return None
        for D, norm in zip(data[self.which], self.norm, strict=True):
            t = D.transformed
            if t is None or t.U_G is not now.U_G or t.U_A is not before.U_A or t.norm is not norm:
                return None
        return replace(self, transformed=now, left=left_factors(now, len(G)))


class Many(list["Examples"]):
    """The examples of several clients; what the kernel asks of them is worked out once."""

    @cached_property
    def sizes(self) -> Array:
        """How many each client has, `(n,)`."""
        return np.array([D.x.shape[1] for D in self])

    def sizes_like(self, totals: Array) -> Array:
        """The same, to divide each client's row of `totals` by."""
        return self.sizes.astype(totals.dtype).reshape(-1, *(1,) * (totals.ndim - 1))

    def runs(self, theta: Array) -> list[Run]:
        """Neighbours that go together, for parameters of this size and type."""
        key = theta.size, theta.dtype
        if key not in self._runs:
            self._runs[key] = _runs(theta, self)
        return self._runs[key]

    def renew(self, data: "list[Examples]") -> None:
        """Take these in their place: the same examples, under another transform."""
        self[:] = data
        kept = ((key, [run.under(self) for run in runs]) for key, runs in self._runs.items())
        self._runs = {key: [run for run in runs if run] for key, runs in kept if all(runs)}

    @cached_property
    def _runs(self) -> dict[tuple[int, np.dtype[Any]], list[Run]]:
        return {}


def _runs(theta: Array, data: "Sequence[Examples]") -> list[Run]:
    def kind(i: int) -> Any:  # 0 is alone
        D = data[i]
        if not takes(theta, D) or (D.lazy and D.size > SMALL):
            return 0
        t = D.transformed
        return -1 if t is None else (id(t.U_G), id(t.U_A if t.P is None else t.P))

    runs = []
    for what, group in groupby(range(len(data)), kind):
        first, *rest = group
        part = data[first : first + 1 + len(rest)]
        runs.append(_run(theta, part, first, taken=what != 0))
    return runs


def _run(theta: Array, data: "Sequence[Examples]", first: int, *, taken: bool) -> Run:
    """Clients under the same transform, if any."""
    which, t = slice(first, first + len(data)), data[0].transformed
    if not taken:
        return Run(which, [], [], [], t, taken)
    x, target, norm = ([np.asarray(D[k]) for D in data] for k in range(3))
    if t is None:
        return Run(which, x, target, norm, t, taken)
    norm = [D.transformed.norm for D in data if D.transformed]
    left, right = left_factors(t, math.prod(theta.shape[:-2])), _dense(t.U_A)
    return Run(which, x, target, norm, t, taken, left=left, right=right)


Left = tuple[Array | None, Array | None]


def left_factors(t: "Transformed | None", S: int) -> Left:
    """A triangle R by which the kernel clips under a transform, |R r| is |U_G r|; and U_G itself.

    Both for each of S heads, `(S, K, K)`; or `None` twice.
    """
    if t is None or t.U_G is None:
        return None, None
    R = np.asarray(np.linalg.qr(t.U_G.astype(np.float64), mode="r"))
    shape = S, *R.shape[-2:]
    return _dense(np.broadcast_to(R, shape)), _dense(np.broadcast_to(t.U_G, shape))


def _dense(factor: Array) -> Array:
    return np.ascontiguousarray(factor, np.float32)


def plain_sums(thetas: Array, data: "Sequence[Examples]", clip: Scale) -> Array:
    """The sums of clients that the kernel takes, clipped under a transform but not transformed.

    Args:
        thetas: each client's parameters, `(n, K, F+1)`, or `(n, S, K, F+1)` for stacks of heads.
        data: their examples, under the same transform, if any.
        clip: the largest norm of one gradient; or one a head, `(S, 1, 1)`.

    Returns:
        The sums, of the shape of `thetas`.
    """
    run = _run(thetas[0], data, 0, taken=True)
    left = run.left[0], None
    return _in_one_call(thetas, replace(run, transformed=None, left=left, right=None), clip)


def _in_one_call(thetas: Array, run: Run, clip: Scale) -> Array:
    """The sums of a run that the kernel takes, transformed if it has a right factor."""
    n, *heads, K, width = thetas.shape
    S, (R, G) = math.prod(heads), run.left
    C = np.full(S, np.ravel(np.minimum(clip, np.finfo(np.float32).max)), np.float32)
    out = np.empty((n, S, K, width), np.float32)
    whole = for_raw(thetas, run.transformed).reshape(out.shape)
    x, threads = run.x if run.held is None else run.held, thread_count()
    run.held = clipped_sums(out, whole, x, run.target, run.norm, C, R, threads, run.right, G)
    return out.reshape(thetas.shape)


def residual_moment(theta: Array, data: "Examples") -> Array | None:
    r"""The sum of $rr^\top$ over the residuals of some examples, if the kernel takes them."""
    K = len(theta)
    if not takes(theta, data) or K * K > LARGE_HEAD or data.transformed is not None:
        return None
    out, given = np.empty((1, 1, K, K), np.float32), theta[None, None]
    x, target, norm = np.asarray(data.x), np.asarray(data.target), np.zeros(data.size, np.float32)
    C = np.ones(1, np.float32)  # over norms of 0: nothing is clipped
    clipped_sums(out, given, [x], [target], [norm], C, None, 1, None, None, True)
    return np.asarray(out[0, 0], np.float64)


def for_raw(thetas: Array, t: "Transformed | None") -> Array:
    """The parameters for examples as they are: `theta P`, where these are seen through a map."""
    if t is None or t.P is None:
        return thetas
    if thetas.ndim > 2 and not thetas.strides[0]:  # the same for all clients
        return np.broadcast_to(for_raw(thetas[0], t), thetas.shape)
    return _multiplied(thetas.copy(), None, t.P)


def transformed(totals: Array, t: "Transformed | None") -> Array:
    """Sums under the transform that their gradients were clipped under, if any.

    Of many, what becomes of each depends on it alone, to the last bit; `totals` may be changed.
    """
    return totals if t is None else _multiplied(totals, t.U_G, t.U_A)


def _multiplied(totals: Array, G: Array | None, A: Array) -> Array:
    """`G total A` of each."""
    *_, K, width = totals.shape
    if not transform_sums or totals.dtype != np.float32 or K * width > LARGE_HEAD:
        return np.asarray((totals if G is None else G @ totals) @ A.astype(totals.dtype))
    left = None if G is None else np.ascontiguousarray(G, np.float32).reshape(-1, K, K)
    heads = 1 if left is None else len(left)
    whole = np.ascontiguousarray(totals).reshape(-1, heads, K, width)
    transform_sums(whole, np.ascontiguousarray(A, np.float32), left)
    return whole.reshape(totals.shape)


def gradient_sums(thetas: Array, data: "Sequence[Examples]", clip: Scale) -> Array:
    """`clipped_gradient_sum` of each client, at its own parameters; of the shape of `thetas`."""
    many = data if isinstance(data, Many) else Many(data)
    runs = many.runs(thetas[0])
    if len(runs) == 1 and runs[0].taken:
        return _in_one_call(thetas, runs[0], clip)
    out = np.empty(thetas.shape, thetas.dtype)
    for run in runs:
        if run.taken:
            out[run.which] = _in_one_call(thetas[run.which], run, clip)
            continue
        for i in range(run.which.start, run.which.stop):
            out[i] = many[i].gradient_sum(thetas[i], clip).value
    return out
