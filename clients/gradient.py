"""The gradient client: one clipped, noisy mean gradient a round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clients.program import Client, Noise, Program, Stateless, noisy_gradients
from fedsofim.linalg import Array
from fedsofim.privacy.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Gradient(Program):
    """The client of DP-FedGD, DP-FedSOFIM and all that differ in the server's rule alone."""

    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Stateless,
        plan: Plan,
        noise: Noise,
    ) -> tuple[Array, Stateless]:
        return noisy_gradients(received["theta"], clients, plan, noise), state
