r"""The objective of a linear head, F in the paper, with its constants and its minimum, in float64.

$F(\theta) = \sum_j w_j\,\ell(\theta; x_j, y_j) + \frac\lambda2\lVert\theta\rVert^2$ with the
softmax cross-entropy $\ell$. It reads all records as they are, without clip or noise: for
simulations only.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.models.head import Examples

PRODUCTS = 200  # with the Hessian, at most, for one step of Newton's method


class Minimum(NamedTuple):
    """Where Newton's method stopped.

    Attributes:
        theta: the parameters.
        value: F there.
        decrement: half of Newton's decrement, an estimate of how far above the infimum that is.
    """

    theta: Array
    value: float
    decrement: float


class Objective(NamedTuple):
    """A weighted mean of the records' losses, and a penalty.

    Attributes:
        x: features with a last row of ones, `(F+1, N)`.
        target: one-hot labels, `(K, N)`.
        weight: of each record, `(N,)`; they add up to 1.
        l2: the weight of the penalty.
    """

    x: Array
    target: Array
    weight: Array
    l2: float

    @classmethod
    def of(cls, parts: Sequence[Examples], shares: Array, l2: float) -> "Objective":
        """Of several clients' records: client i's mean loss counts `shares[i]`."""
        weight = [np.full(D.size, w / D.size) for D, w in zip(parts, shares, strict=True)]
        x, target = (np.concatenate([D[i] for D in parts], axis=1) for i in (0, 1))
        return cls(x.astype(float), target.astype(float), np.concatenate(weight), l2)

    def gradient(self, theta: Array) -> tuple[float, Array]:
        """F and its gradient."""
        z = theta @ self.x
        top = z.max(axis=0)
        loss = top - (z * self.target).sum(axis=0)
        p = np.exp(z - top)
        s = p.sum(axis=0)
        p /= s
        value = float(self.weight @ (loss + np.log(s))) + self.l2 / 2 * float((theta**2).sum())
        return value, ((p - self.target) * self.weight) @ self.x.T + self.l2 * theta

    def product(self, p: Array, V: Array) -> Array:
        """The Hessian where the records' probabilities are `p`, `(K, N)`, times `V`, `(K, F+1)`."""
        u = V @ self.x
        u *= p
        u -= p * u.sum(axis=0)
        u *= self.weight
        return np.asarray(u @ self.x.T + self.l2 * V)

    def probabilities(self, theta: Array) -> Array:
        """The softmax of every record's logits, `(K, N)`."""
        z = theta @ self.x
        p = np.exp(z - z.max(axis=0))
        return np.asarray(p / p.sum(axis=0))

    def second_moment(self) -> Array:
        r"""$\sum_j w_j x_jx_j^\top$, `(F+1, F+1)`."""
        return np.asarray((self.x * self.weight) @ self.x.T)

    def smoothness(self) -> float:
        r"""The least L for which F is L-smooth everywhere (Assumption 4.2).

        The Hessian is $\sum_j w_j(\operatorname{diag}p_j - p_jp_j^\top)\otimes x_jx_j^\top +
        \lambda I$. The first factor's eigenvalues are at most 1/2, which two classes with p = 1/2
        reach, and a bias can give that p to all records at once: so L is half of the largest
        eigenvalue of the second moment, plus $\lambda$, and nothing less is.
        """
        return float(np.linalg.eigvalsh(self.second_moment())[-1]) / 2 + self.l2

    @property
    def strong_convexity(self) -> float:
        r"""The largest $\mu$ for which F is $\mu$-strongly convex (Assumption 4.3): $\lambda$.

        A softmax does not change if all classes' parameters move together, so without a penalty F
        has directions without curvature: Remark 4.4.
        """
        return self.l2

    def minimise(self, theta: Array, tolerance: float = 1e-9, steps: int = 60) -> Minimum:
        """Newton's method with conjugate gradients, from `theta`."""
        eigenvalues, Q = np.linalg.eigh(self.second_moment())
        K = len(self.target)
        scale = (1 - 1 / K) / K * np.maximum(eigenvalues, 0) + self.l2
        inverse = (Q / np.maximum(scale, 1e-9 * scale[-1])) @ Q.T
        theta = theta.astype(float)
        value, g = self.gradient(theta)
        decrement = np.inf
        for _ in range(steps):
            s = self._newton(self.probabilities(theta), g, inverse)
            decrement = float((g * s).sum()) / 2
            if decrement <= tolerance:
                break
            size, (new, ahead) = 1.0, self.gradient(theta - s)
            while not new <= value - 1e-4 * size * decrement and size > 1e-9:
                size /= 2
                new, ahead = self.gradient(theta - size * s)
            theta, value, g = theta - size * s, new, ahead
        return Minimum(theta, value, decrement)

    def _newton(self, p: Array, g: Array, inverse: Array) -> Array:
        """The Newton step, by conjugate gradients with a preconditioner for the features' side."""
        s, r = np.zeros_like(g), g.copy()
        v = r @ inverse
        rv = start = float((r * v).sum())
        d = v
        for _ in range(PRODUCTS):
            if rv <= 1e-6 * start:
                break
            Hd = self.product(p, d)
            a = rv / float((d * Hd).sum())
            s, r = s + a * d, r - a * Hd
            v = r @ inverse
            rv, before = float((r * v).sum()), rv
            d = v + rv / before * d
        return s
