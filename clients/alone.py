"""The client that trains alone: it sends nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsofim.clients.group import Client
from fedsofim.clients.personal import PersonalSteps, plain_gradients
from fedsofim.clients.program import Noise
from fedsofim.core.arrays import Array
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.plan import Protection


class AloneState(NamedTuple):
    """Each client's own parameters, `(n, K, F+1)`, and how many steps it took, `(n,)`."""

    theta: Array
    steps: Array


@dataclass(frozen=True, kw_only=True)
class Alone(PersonalSteps):
    r"""The client of local-only training: K steps of plain SGD a round on a model of its own.

    It sends an empty array. So nothing is charged, there is nothing to hide, and neither clip nor
    noise is applied whatever the budget: $\varepsilon = 0$ against the server and all others.

    >>> Alone(lr=0.1, steps=10).disclosure.sends
    False
    """

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            releases=lambda rounds: 0,
            shares_noise=False,  # there is none
            record_moves_others=False,
            uses_part=False,  # there is no charge that a part of the records could fall short of
        )

    def init(self, theta: Array, clients: int) -> AloneState:
        return AloneState(np.repeat(theta[None], clients, axis=0), np.zeros(clients, np.int64))

    def personal(self, theta: Array, clients: Sequence[Client], state: AloneState) -> Array:
        return state.theta

    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: AloneState,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, AloneState]:
        y = self.descend(state.theta, state.steps, clients, plain_gradients)
        return np.empty((*y.shape[:-2], 0), y.dtype), AloneState(y, state.steps + self.steps)
