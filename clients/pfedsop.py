"""The pFedSOP client: a model of its own, and a second-order step on what all drifts say."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedsofim.clients.group import Client
from fedsofim.clients.personal import TunedSteps, released_gradients
from fedsofim.clients.program import Noise
from fedsofim.core.arrays import Array, Scale
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.plan import Protection


class PFedSOPState(NamedTuple):
    r"""What a client remembers.

    Attributes:
        theta: its own parameters $\theta_i$, `(n, K, F+1)`.
        drift: its last drift $\Delta_i$, zero before its first round, `(n, K, F+1)`.
        steps: how many local steps it took, `(n,)`.
    """

    theta: Array
    drift: Array
    steps: Array


def angle(a: Array, b: Array) -> Array:
    r"""The angle between matrices read as vectors, in $[0, \pi]$; NaN where one of them is zero.

    Args:
        a: `(..., K, F+1)`.
        b: the same, or what broadcasts with it.

    Returns:
        The angles, `(..., 1, 1)`, float64.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    return _angle(dots(a, a), dots(a, b), dots(b, b))


def dots(a: Array, b: Array) -> Array:
    """The inner products of matrices read as vectors, `(..., 1, 1)`, each in a fixed order."""
    flat = (v.reshape(*v.shape[:-2], -1) for v in (a, b))
    return np.asarray(np.einsum("...j,...j->...", *flat))[..., None, None]


def _angle(aa: Array, ab: Array, bb: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = ab / (np.sqrt(aa) * np.sqrt(bb))
    return np.asarray(np.arccos(np.clip(cosine, -1, 1)))  # rounding may lead outside [-1, 1]


def gompertz(phi: Array, sharpness: Scale) -> Array:
    r"""How much of the global drift to take: $\beta = 1 - e^{-e^{-\lambda(\varphi - 1)}}$.

    It falls with the angle: a client that agrees with the others follows them, one that does not
    keeps to itself. At one radian it is $1 - 1/e$ for every $\lambda$.

    >>> gompertz(np.array([0.0, 1.0, np.pi]), 1.0).round(4)
    array([0.934 , 0.6321, 0.1108])
    """
    exponent = np.minimum(-sharpness * (phi - 1), 700)  # e^700 is finite, and beta is 1 long before
    return np.asarray(-np.expm1(-np.exp(exponent)))


def personal_step(drift: Array, shared: Array, sharpness: Scale, rho: Scale) -> Array:
    r"""The rank-one Newton step on the blend of a client's own drift with that of all.

    $$\Delta^p_i = (1-\beta)\,\Delta_i + \beta\,\Delta \qquad
      (\Delta^p_i {\Delta^p_i}^\top + \rho I)^{-1} \Delta^p_i
        = \Delta^p_i / (\rho + \lVert\Delta^p_i\rVert^2)$$

    The right-hand side is what Sherman–Morrison gives, without its cancellation when the drift is
    large. Where one of the drifts is zero they have no angle, and the step is zero.

    Args:
        drift: each client's own, $\Delta_i$, `(n, K, F+1)`, or `(n, S, K, F+1)` for a stack.
        shared: the mean of all, $\Delta$, `(K, F+1)` or `(S, K, F+1)`.
        sharpness: of the weight, $\lambda$; or one a head, `(S, 1, 1)`.
        rho: the regulariser, > 0; or one a head, `(S, 1, 1)`.

    Returns:
        One step a client, of the shape and dtype of `drift`.
    """
    own, common = drift.astype(np.float64), shared.astype(np.float64)
    aa, ab, bb = dots(own, own), dots(own, common), dots(common, common)
    beta = gompertz(_angle(aa, ab, bb), sharpness)
    # The squared norm of the blend, the personal gradient Delta^p_i:
    squares = (1 - beta) ** 2 * aa + 2 * beta * (1 - beta) * ab + beta**2 * bb
    scale = 1 / (rho + np.maximum(squares, 0))  # rounding may lead below 0
    none = np.isnan(beta)
    own *= np.where(none, 0.0, (1 - beta) * scale)
    own += np.where(none, 0.0, beta * scale) * common
    return own.astype(drift.dtype)


@dataclass(frozen=True, kw_only=True)
class PFedSOP(TunedSteps):
    r"""The client of pFedSOP.

    In a round it takes the personal step on its last drift $\Delta_i$ and the broadcast mean
    $\Delta$, then K steps of SGD, and sends the drift of the latter:

    $$\theta_i \leftarrow \theta_i - \eta_1\,(\Delta^p_i {\Delta^p_i}^\top + \rho I)^{-1}\Delta^p_i
      \qquad \Delta_i \leftarrow (\theta_i - \theta_i^{(K)}) / \eta_2$$

    In its first round it has no drift, and SGD is all it does; so it is in the first round of all,
    when there is no mean. A client that sits out keeps its model and its drift.

    With a budget the K steps use clipped, noisy gradients and each is charged. $\Delta_i$ is their
    sum, and everything else is a function of these and of what the server sent: it costs nothing.
    The tuning, which the paper does not have, takes the noise of these steps out of the model that
    the client uses.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"theta", "drift", "lr", "rho", "sharpness"})

    @property
    def disclosure(self) -> Disclosure:
        return super().disclosure  # the personal step reads only what was released before

    @property
    def noise_gain(self) -> float:
        return math.sqrt(self.steps)  # it sends the sum of the gradients, not the way they took it

    def init(self, theta: Array, clients: int) -> PFedSOPState:
        own = np.repeat(theta[None], clients, axis=0)
        return PFedSOPState(own, np.zeros_like(own), np.zeros(clients, np.int64))

    def personal(self, theta: Array, clients: Sequence[Client], state: PFedSOPState) -> Array:
        return self.tune(state.theta, clients)

    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: PFedSOPState,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, PFedSOPState]:
        eta_1, rho, sharpness = (received[name] for name in ("lr", "rho", "sharpness"))
        step = personal_step(state.drift, received["drift"], sharpness, rho)
        x = state.theta - eta_1 * step
        y = self.descend(x, state.steps, clients, released_gradients(plan, noise))
        # Delta_i of the paper's round:
        drift = (x - y) / self.lr  # from after the personal step: what SGD alone did
        return drift, PFedSOPState(y, drift, state.steps + self.steps)
