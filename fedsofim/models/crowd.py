"""The clipped gradient sums of many clients at once.

A client with few examples is over before Python has called BLAS for it. So the kernel takes all of
them in one call; a client with many is left to `head.py`. Which of the two it is depends on the
client's own size, so its sum has the same bits in every company.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from fedsofim.core.arrays import Array, Scale

if TYPE_CHECKING:
    from fedsofim.models.head import Examples

try:
    from fedsofim_kernel import clipped_sums  # crowd.c
except ImportError:  # it was installed without a compiler
    clipped_sums = None

# As many examples of a client, and numbers of a model, are few.
SMALL, SMALL_MODEL = 128, 1 << 16


def is_small(theta: Array, data: "Examples") -> bool:
    """Whether `small_sums` takes a client's examples."""
    few = data.x.shape[1] <= SMALL and theta.size <= SMALL_MODEL
    return bool(few and clipped_sums and theta.dtype == data.x.dtype == np.float32)


def small_sums(thetas: Array, data: "Sequence[Examples]", clip: Scale) -> Array:
    """`clipped_gradient_sum` of several clients with few examples, in one call of the kernel.

    Args:
        thetas: each client's parameters, `(n, K, F+1)`, or `(n, S, K, F+1)` for stacks of heads.
        data: their examples, under the same transform, if any.
        clip: the largest norm of one gradient; or one a head, `(S, 1, 1)`.

    Returns:
        The sums, of the shape of `thetas`.
    """
    n, *heads, K, width = thetas.shape
    S, t = math.prod(heads), data[0].transformed
    C = np.full(S, np.ravel(np.minimum(clip, np.finfo(np.float32).max)), np.float32)
    U = None if t is None else np.full((S, K, K), t.U_G, np.float32)
    x, target, norm = ([np.asarray(D[k]) for D in data] for k in range(3))
    if t is not None:
        norm = [D.transformed.norm for D in data if D.transformed]
    out = np.empty((n, S, K, width), np.float32)
    clipped_sums(out, thetas.reshape(out.shape), x, target, norm, C, U)
    totals: Array = out.reshape(thetas.shape)
    return totals if t is None else np.asarray(t.U_G @ totals @ t.U_A)


def gradient_sums(thetas: Array, data: "Sequence[Examples]", clip: Scale) -> Array:
    """`clipped_gradient_sum` of each client, at its own parameters; of the shape of `thetas`."""

    def kind(i: int) -> int:  # neighbours of one kind go together; 0 is alone
        if not is_small(thetas[0], data[i]):
            return 0
        t = data[i].transformed
        return id(t.U_G) if t else -1

    kinds = [(what, list(group)) for what, group in groupby(range(len(data)), kind)]
    if len(kinds) == 1 and kinds[0][0]:
        return small_sums(thetas, data, clip)
    out = np.empty(thetas.shape, thetas.dtype)
    for what, group in kinds:
        part = slice(group[0], group[-1] + 1)
        if what:
            out[part] = small_sums(thetas[part], data[part], clip)
            continue
        for i in group:
            out[i] = data[i].gradient_sum(thetas[i], clip).value
    return out
