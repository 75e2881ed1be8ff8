"""The clipped gradient sums of a head: by the kernel, or with NumPy's matrix products."""

import math
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import DTypeLike

from fedsofim.core.arrays import Array, Scale
from fedsofim.models import crowd
from fedsofim.models.coded import Columns, OneHot, Rows
from fedsofim.models.moments import norms

if TYPE_CHECKING:
    from fedsofim.models.head import Examples

try:
    from fedsofim_kernel import clipped_residuals, decoded_sum  # kernel.c, held.c
except ImportError:  # it was installed without a compiler
    clipped_residuals = decoded_sum = None

# Columns worked on at a time, and logits: they and the features then stay in the L2 cache.
CHUNK, LOGITS = 1280, 160_000
LANES = 16  # chunks are multiples of it, so that rows of logits begin where vectors do
WHOLE = 4096  # examples whose sums are added up: CHUNK of client.c
PAGE = 4096  # bytes


def residual(theta: Array, batch: "Examples") -> Array:
    """`softmax(theta x) - onehot(y)` of each example, `(..., K, N)` for `theta` `(..., K, F+1)`."""
    r = np.empty((*theta.shape[:-1], batch.size), theta.dtype)
    _residual(crowd.for_raw(theta, batch.transformed), batch, r)
    return r


def _logits(theta: Array, x: Array, out: Array) -> None:
    """Write `theta x` to `out`, in one matrix product for a whole stack of heads."""
    np.matmul(theta.reshape(-1, len(x)), x, out=out.reshape(-1, x.shape[1]))


def _aligned(size: int, dtype: DTypeLike) -> Array:
    """An empty array that begins where a cache line does."""
    size *= np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][:size].view(dtype)


def rows(count: int, length: int, dtype: DTypeLike) -> Array:
    """An empty array, `(count, length)`; long rows begin where cache lines do: that is faster.

    Rows that are pages apart would all want the same places of a cache, so they are not.
    """
    wide = length if length < WHOLE // 8 else -(-length // LANES) * LANES
    if wide and wide * np.dtype(dtype).itemsize % PAGE == 0:
        wide += LANES
    return _aligned(count * wide, dtype).reshape(count, wide)[:, :length]


def _residual(theta: Array, batch: "Examples", out: Array, shift: bool = False) -> bool:
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


def clipped_gradient_sum(theta: Array, data: "Examples", clip: Scale) -> Array:
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


def _by_kernel(theta: Array, data: "Examples", clip: Scale) -> Array:
    """The sum before it is transformed; of examples that become arrays in parts, as of others."""
    if decoded_sum and isinstance(data.x, Columns) and data.x.rows.known:
        return _as_held(theta, data, data.x.rows, clip)
    total, start = np.zeros_like(theta), 0
    while start < data.size:
        whole = not data.lazy or data.size - start <= WHOLE + crowd.SMALL
        end = data.size if whole else start + WHOLE
        total += crowd.plain_sums(theta[None], [data.part(slice(start, end))], clip)[0]
        start = end
    return total


def _as_held(theta: Array, data: "Examples", rows: Rows, clip: Scale) -> Array:
    """The same of examples that the kernel makes floats of, in one call."""
    *heads, K, width = theta.shape
    S, t = math.prod(heads), data.transformed
    C = np.full(S, np.ravel(np.minimum(clip, np.finfo(np.float32).max)), np.float32)
    R = crowd.left_factors(t, S)[0]
    total, parameters = np.empty((S, K, width), np.float32), theta.reshape(S, K, width)
    labels, norm = cast(OneHot, data.target).labels, data.norm if t is None else t.norm
    decoded_sum(total, np.ascontiguousarray(parameters), *rows.parts, labels, norm, C, R)
    return total.reshape(theta.shape)


def _by_products(theta: Array, data: "Examples", clip: Scale) -> Array:
    """The same with NumPy's products."""
    *heads, K, width = theta.shape
    S, t = math.prod(heads), data.transformed
    rows, C = S * K, np.minimum(clip, np.finfo(theta.dtype).max)
    size = max(LANES, min(CHUNK, LOGITS // rows // LANES * LANES))
    total, shift = np.zeros((rows, width), theta.dtype), False
    buffer, R = _aligned(rows * size, theta.dtype), None
    compiled = clipped_residuals and theta.dtype == data.x.dtype == np.float32
    if compiled:  # the same for one head as for a stack
        C = np.full(S, np.ravel(C), np.float32)
        R = crowd.left_factors(t, S)[0]
    for batch in data.chunks(size):
        x, r = batch.x, buffer[: rows * batch.size].reshape(*heads, K, batch.size)
        if compiled:
            _logits(theta, x, r)
            norm = batch.norm if batch.transformed is None else batch.transformed.norm
            lost = clipped_residuals(r.reshape(S, K, -1), batch.target, norm, C, R)
        else:
            shift = _residual(theta, batch, r, shift)
            lost = _clip(r, batch, C)
        if lost:
            x = np.where(np.isfinite(x), x, 0)  # 0 times infinity is not 0
        total += r.reshape(rows, -1) @ x.T
    return total.reshape(theta.shape)


def _clip(r: Array, batch: "Examples", C: Scale) -> bool:
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
