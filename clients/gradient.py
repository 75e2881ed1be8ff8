"""The gradient client: one clipped, noisy mean gradient a round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsofim.clients.group import Client
from fedsofim.clients.program import Noise, Program, Stateless, noisy_gradients
from fedsofim.clients.together import noisy_sums
from fedsofim.core.arrays import Array
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.plan import Protection


@dataclass(frozen=True, kw_only=True)
class Gradient(Program):
    """The client of DP-FedGD, DP-FedSOFIM and all that differ in the server's rule alone.

    >>> Gradient().disclosure.releases(70)
    70
    """

    gradients: ClassVar[bool] = True

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            releases=lambda rounds: rounds,
            shares_noise=True,
            record_moves_others=False,
            uses_part=False,
        )

    @property
    def noise_gain(self) -> float:
        return 1.0

    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Stateless,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Stateless]:
        theta = received["theta"]
        thetas = np.broadcast_to(theta, (len(clients), *theta.shape))
        return noisy_gradients(thetas, clients, plan, noise), state  # Eq. (2); Algorithm 1, line 8

    def contribute(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Stateless,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Stateless]:
        return noisy_sums(received["theta"], clients, plan, noise), state
