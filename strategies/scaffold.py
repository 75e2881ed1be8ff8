"""DP-SCAFFOLD: control variates against client drift."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.rate import Rate
from fedsofim.strategies.rule import Rule, ServerState


class ScaffoldBuffers(NamedTuple):
    """The server's control variate."""

    c: Array


@dataclass(frozen=True, kw_only=True)
class Scaffold(Rule):
    r"""DP-SCAFFOLD.

    $$\theta_{t+1} = \theta_t - \eta_s G_t \qquad
      c \leftarrow c + \operatorname{mean}_i \Delta c_i, \quad
      \Delta c_i = (x - y_i)/(K\eta_l) - c$$

    with G the aggregate of the drifts $x - y_i$, so that nothing but the drift is sent. All of it
    is post-processing of the K noisy gradients a round that are charged.

    Attributes:
        client_lr: the clients' learning rate $\eta_l$.
        local_steps: the clients' steps K.

    References:
        Karimireddy et al. 2020, https://arxiv.org/abs/1910.06378;
        Noble et al. 2022, https://arxiv.org/abs/2111.09278.

    >>> rule = Scaffold(rate=Rate(0.5), client_lr=0.1, local_steps=2)
    >>> buffers, step = rule.update(rule.init(np.zeros(2)), np.array([0.2, 0.4]), t=0, rounds=70)
    >>> buffers.c, step
    (array([1., 2.]), array([0.1, 0.2]))
    """

    client: ClassVar[str | type] = "scaffold"
    rate: Rate
    client_lr: float
    local_steps: int

    def __post_init__(self) -> None:
        require(self.client_lr > 0, f"client_lr={self.client_lr}: must be > 0")
        require(self.local_steps >= 1, f"local_steps={self.local_steps}: must be at least 1")

    def init(self, theta: Array) -> ScaffoldBuffers:
        return ScaffoldBuffers(np.zeros_like(theta))

    def broadcast(self, state: ServerState) -> dict[str, Array]:
        return {"theta": state.theta, "c": state.buffers.c}

    def update(
        self, buffers: ScaffoldBuffers, G: Array, t: int, rounds: int
    ) -> tuple[ScaffoldBuffers, Array]:
        c = buffers.c
        # Karimireddy et al., Algorithm 1, option II: the mean of the clients' c_i+ - c_i.
        delta_c = G / (self.local_steps * self.client_lr) - c
        return ScaffoldBuffers(c + delta_c), self.rate.at(t, rounds) * G
