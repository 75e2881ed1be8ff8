"""The SCAFFOLD client: local steps corrected by control variates that it keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedsofim.clients.group import Client
from fedsofim.clients.program import Noise, noisy_gradients
from fedsofim.clients.steps import LocalSteps
from fedsofim.core.arrays import Array
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.plan import Protection


class ScaffoldState(NamedTuple):
    """Each client's control variate $c_i$, `(n, K, F+1)`."""

    c: Array


@dataclass(frozen=True, kw_only=True)
class ScaffoldSteps(LocalSteps):
    r"""The client of DP-SCAFFOLD.

    $$y_{k+1} = y_k - \eta_l\,(\tilde g(y_k) + c - c_i) \qquad
      c_i \leftarrow c_i - c + (x - y_K) / (K \eta_l)$$

    Only the drift $x - y_K$ is sent: the server derives the change of $c_i$ from it. Both are
    functions of the noisy gradients, so nothing but these is charged.

    >>> ScaffoldSteps(lr=0.1, steps=7).disclosure.shares_noise
    False
    """

    needs: ClassVar[frozenset[str]] = frozenset({"theta", "c"})
    every_round: ClassVar[bool] = True  # the server takes the mean change of c_i for that of all

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            releases=lambda rounds: rounds * self.steps,
            shares_noise=False,  # c_i remembers the client's own releases
            record_moves_others=False,
            uses_part=False,
        )

    def init(self, theta: Array, clients: int) -> ScaffoldState:
        return ScaffoldState(np.zeros((clients, *theta.shape), theta.dtype))

    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: ScaffoldState,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, ScaffoldState]:
        x, c, c_i = received["theta"], received["c"], state.c
        drift = np.zeros_like(c_i)  # x - y
        for k in range(self.steps):
            g = noisy_gradients(x - drift, clients, plan, noise, draw=k)
            drift = drift + self.lr * (g + c - c_i)  # Karimireddy et al., Algorithm 1
        # The same, option II.
        return drift, ScaffoldState(c_i - c + drift / (self.steps * self.lr))
