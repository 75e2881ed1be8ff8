r"""A linear softmax head on frozen features, with per-example clipping in closed form.

The gradient of one example is a rank-one matrix, $g = (p - e_y)\,\tilde x^\top$, so its norm is
$\lVert p - e_y\rVert\,\lVert\tilde x\rVert$ and the sum of clipped gradients is one weighted matrix
product: no per-example gradient is ever formed.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedsofim.linalg import Array, Scale

# Columns worked on at a time, for one head: logits and features then stay in the L2 cache.
CHUNK = 1024


class Examples(NamedTuple):
    """Labelled examples, ready for the head; examples are columns, so that slices are views.

    Attributes:
        x: features with a last row of ones for the bias, `(F+1, N)`.
        target: one-hot labels, `(K, N)`.
        norm: the Euclidean norm of each column of `x`, `(N,)`.
    """

    x: Array
    target: Array
    norm: Array

    @property
    def size(self) -> int:
        """How many examples there are."""
        return int(self.x.shape[1])

    def chunks(self, size: int) -> Iterator["Examples"]:
        """Views of at most `size` examples each, in order."""
        for start in range(0, self.size, size):
            part = slice(start, start + size)
            yield Examples(self.x[:, part], self.target[:, part], self.norm[part])


def examples(features: Array, labels: Array, classes: int) -> Examples:
    """Prepare `(N, F)` features and `(N,)` integer labels for the head."""
    n = len(features)
    x = np.ones((features.shape[1] + 1, n), dtype=features.dtype)
    x[:-1] = features.T
    target = np.zeros((classes, n), dtype=x.dtype)
    target[labels, np.arange(n)] = 1
    return Examples(x, target, np.sqrt(np.einsum("fn,fn->n", x, x)))


def init(rng: np.random.Generator, classes: int, features: int) -> Array:
    """Initial parameters `(K, F+1)`, Gaussian with std `0.5 sqrt(2 / (F + 1 + K))`, bias last."""
    std = 0.5 * math.sqrt(2 / (features + 1 + classes))
    return std * rng.standard_normal((classes, features + 1)).astype(np.float32)


def residual(theta: Array, batch: Examples) -> Array:
    """`softmax(theta x) - onehot(y)` of each example, `(..., K, N)` for `theta` `(..., K, F+1)`."""
    p = (theta.reshape(-1, theta.shape[-1]) @ batch.x).reshape(*theta.shape[:-1], batch.size)
    p -= p.max(axis=-2, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=-2, keepdims=True)
    p -= batch.target
    return p


def clipped_gradient_sum(theta: Array, data: Examples, clip: Scale) -> Array:
    """The sum over all examples of the gradient, each clipped to Euclidean norm `clip`.

    Replacing one example moves the sum by at most `2 clip`, adding or removing one by at most
    `clip`, whatever the features are: an example whose gradient is not finite contributes zero.

    Args:
        theta: parameters, `(K, F+1)`, or a stack of heads `(S, K, F+1)`.
        data: the examples.
        clip: the largest norm of one example's gradient, `inf` for no clipping; or one a head,
            `(S, 1, 1)`.

    Returns:
        The sum, of the shape of `theta`.
    """
    total = np.zeros_like(theta)
    C = clip[..., 0] if isinstance(clip, np.ndarray) else clip
    clipping = np.any(np.isfinite(C))
    C = np.minimum(C, np.finfo(theta.dtype).max)  # a head without a clip beside one that has it
    for batch in data.chunks(CHUNK if theta.ndim == 2 else CHUNK // 2):
        r = residual(theta, batch)
        norm = np.sqrt(np.einsum("...kn,...kn->...n", r, r)) * batch.norm
        x = batch.x
        if clipping:
            r *= (C / np.maximum(norm, C))[..., None, :]  # min(1, C / ||g||)
            if not np.isfinite(norm).all():
                np.copyto(r, 0, where=~np.isfinite(norm)[..., None, :])
                x = np.where(np.isfinite(batch.norm), x, 0)  # 0 times infinity is not 0
        total += (r.reshape(-1, batch.size) @ x.T).reshape(theta.shape)
    return total


def predict(theta: Array, data: Examples) -> Array:
    """The most likely class of each example, `(..., N)` for `theta` `(..., K, F+1)`."""
    return np.concatenate([(theta @ b.x).argmax(axis=-2) for b in data.chunks(CHUNK)], axis=-1)


def evaluate(theta: Array, data: Examples) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of the head on `data`."""
    correct, loss = 0, 0.0
    for batch in data.chunks(CHUNK):
        z = theta @ batch.x
        top = z.max(axis=0)
        z_label = np.einsum("kn,kn->n", z, batch.target)
        correct += int((z.argmax(axis=0) == batch.target.argmax(axis=0)).sum())
        loss += float((top + np.log(np.exp(z - top).sum(axis=0)) - z_label).sum())
    return correct / data.size, loss / data.size
