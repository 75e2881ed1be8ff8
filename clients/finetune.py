"""The client of FedAvg with fine-tuning: it trains the common model, and then adapts it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from clients.personal import PersonalSteps, plain_gradients, released_gradients
from clients.program import Client, Noise
from fedsofim.config import require
from fedsofim.linalg import Array
from fedsofim.privacy.plan import Plan


class FineTuneState(NamedTuple):
    """How many local steps each client took, `(n,)`."""

    steps: Array


@dataclass(frozen=True, kw_only=True)
class FineTune(PersonalSteps):
    r"""The client of FedAvg with local fine-tuning.

    In a round it is FedAvg's: K steps from the broadcast $\theta$, of which it sends the drift.
    Its own model is $\theta$ after some more steps on its own records. These are plain SGD even
    with a budget: nothing of them is ever sent, so they cost nothing. The promise covers what the
    server and everyone behind it sees, and the model may not be passed on.

    Attributes:
        tune_lr: the learning rate of the fine-tuning.
        tune_steps: its steps; 0 scores the common model on each client's own test set.
    """

    tune_lr: float
    tune_steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.tune_lr > 0, f"tune_lr={self.tune_lr}: must be > 0")
        require(self.tune_steps >= 0, f"tune_steps={self.tune_steps}: must be >= 0")

    @property
    def shares_noise(self) -> bool:
        return self.steps == 1

    def init(self, theta: Array, clients: int) -> FineTuneState:
        return FineTuneState(np.zeros(clients, np.int64))

    def personal(self, theta: Array, clients: Sequence[Client], state: FineTuneState) -> Array:
        own = super().personal(theta, clients, state)
        if self.tune_steps == 0:
            return own
        tuner = replace(self, lr=self.tune_lr, steps=self.tune_steps)
        return tuner.descend(own, state.steps, clients, plain_gradients)

    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: FineTuneState,
        plan: Plan,
        noise: Noise,
    ) -> tuple[Array, FineTuneState]:
        x = np.broadcast_to(received["theta"], (len(clients), *received["theta"].shape))
        y = self.descend(x, state.steps, clients, released_gradients(plan, noise))
        return x - y, FineTuneState(state.steps + self.steps)
