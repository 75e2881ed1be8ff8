"""The client of FedAvg with fine-tuning: it trains the common model, and then adapts it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsofim.clients.group import Client
from fedsofim.clients.personal import TunedSteps
from fedsofim.core.arrays import Array
from fedsofim.privacy.disclosure import Disclosure


class FineTuneState(NamedTuple):
    """How many local steps each client took, `(n,)`."""

    steps: Array


@dataclass(frozen=True, kw_only=True)
class FineTune(TunedSteps):
    r"""The client of FedAvg with local fine-tuning.

    In a round it is FedAvg's: K steps from the broadcast $\theta$, of which it sends the drift.
    Its own model is $\theta$ after the tuning; with `tune_steps=0` it is $\theta$ itself, scored
    on each client's own test set.

    >>> FineTune(lr=0.1, steps=5, tune_lr=0.1, tune_steps=100).disclosure.releases(70)
    350
    """

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            releases=lambda rounds: rounds * self.steps,
            shares_noise=self.steps == 1,  # a second step starts from the client's own first
            record_moves_others=False,
            uses_part=self.batch_size is not None,
        )

    def init(self, theta: Array, clients: int) -> FineTuneState:
        return FineTuneState(np.zeros(clients, np.int64))

    def personal(self, theta: Array, clients: Sequence[Client], state: FineTuneState) -> Array:
        return self.tune(super().personal(theta, clients, state), clients)
