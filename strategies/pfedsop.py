"""pFedSOP: personal models; clients share only the mean of their drifts."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.strategies.rule import Rule, ServerState


class PFedSOPBuffers(NamedTuple):
    r"""The mean of the last drifts, $\Delta$; zero before the first round."""

    drift: Array


@dataclass(frozen=True, kw_only=True)
class PFedSOP(Rule):
    r"""pFedSOP, plain or private.

    The server averages the drifts of the clients that took part, $\Delta = \operatorname{mean}_i
    \Delta_i$, and sends it to those of the next round; everything else happens there
    (`clients.pfedsop.PFedSOP`). There is no common model: $\theta$ stays what clients begin with,
    and their own models never leave them.

    A summary of the paper says that clients who agree with the mean keep more of their own drift.
    Its formula, which is used here, gives them more of the mean, and it is the others who keep
    their own.

    Attributes:
        lr: the learning rate of the personal step, $\eta_1$.
        rho: regulariser of the rank-one Fisher matrix, $\rho$ > 0.
        sharpness: how fast the weight of the mean falls with the angle, $\lambda$ > 0.

    References:
        Sen & Mohan 2025, https://arxiv.org/abs/2506.07159.

    >>> rule = PFedSOP(lr=1.0, rho=1.0, sharpness=1.0)
    >>> buffers, step = rule.update(rule.init(np.zeros(2)), np.array([1.0, 2.0]), t=0, rounds=70)
    >>> buffers.drift, float(step)
    (array([1., 2.]), 0.0)
    """

    client: ClassVar[str | type] = "pfedsop"
    lr: float
    rho: float
    sharpness: float

    def __post_init__(self) -> None:
        for name in ("lr", "rho", "sharpness"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name}={value}: must be a finite number > 0")

    def init(self, theta: Array) -> PFedSOPBuffers:
        return PFedSOPBuffers(np.zeros_like(theta))

    def broadcast(self, state: ServerState) -> dict[str, Array]:
        dtype, names = state.theta.dtype, ("lr", "rho", "sharpness")
        settings = {name: np.asarray(getattr(self, name), dtype) for name in names}
        return {"theta": state.theta, "drift": state.buffers.drift, **settings}

    def update(
        self, buffers: PFedSOPBuffers, G: Array, t: int, rounds: int
    ) -> tuple[PFedSOPBuffers, Array]:
        return PFedSOPBuffers(G), np.zeros((), G.dtype)  # the mean drift Delta is all it keeps
