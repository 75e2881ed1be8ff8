"""The client that trains: several clipped, noisy steps on its own, of which it sends the drift."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsofim.clients.group import Client
from fedsofim.clients.program import Noise, Program, noisy_gradients
from fedsofim.clients.together import noisy_sums
from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.plan import Protection


@dataclass(frozen=True, kw_only=True)
class LocalSteps(Program):
    r"""The client of DP-FedAvg and DP-AdaFedProx.

    $$y_0 = x \qquad y_{k+1} = y_k - \eta_l\,(\tilde g(y_k) + \mu\,(y_k - x))$$

    and the drift $x - y_K$ is sent. Every step uses a clipped, noisy gradient and is charged.

    Attributes:
        lr: the client's learning rate $\eta_l$.
        steps: how many local steps, K.

    >>> LocalSteps(lr=0.1, steps=5).disclosure.releases(70)
    350
    """

    lr: float
    steps: int

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr={self.lr}: must be > 0")
        require(self.steps >= 1, f"steps={self.steps}: must be at least 1")

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            releases=lambda rounds: rounds * self.steps,
            shares_noise=self.steps == 1,  # a second step starts from the client's own first
            record_moves_others=False,
            uses_part=False,
        )

    @property
    def noise_gain(self) -> float:
        return self.lr * math.sqrt(self.steps)

    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Any,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Any]:
        mu = received.get("mu", 0.0)  # the proximal pull, if the server asks for one
        x = received["theta"]
        drift = np.zeros((len(clients), *x.shape), x.dtype)  # x - y
        for k in range(self.steps):
            g = noisy_gradients(x - drift, clients, plan, noise, draw=k)
            # McMahan et al., Algorithm 1, ClientUpdate; with mu, Li et al., Eq. (2).
            drift = drift + self.lr * (g - mu * drift)
        return drift, state

    def contribute(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Any,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Any]:
        require(self.steps == 1, f"steps={self.steps}: only one step can be added up")
        return noisy_sums(received["theta"], clients, plan, noise), state

    def from_mean(self, received: Mapping[str, Array], mean: Array) -> Array:
        return self.lr * mean  # the drift of one step; the proximal pull begins with the second
