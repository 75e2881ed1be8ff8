"""What the clients with models of their own share: SGD on their own records."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedsofim.clients.group import Client, Group, grouped
from fedsofim.clients.program import Noise, noisy_gradients
from fedsofim.clients.steps import LocalSteps
from fedsofim.clients.together import noisy_sums
from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.models.crowd import gradient_sums
from fedsofim.models.records import Records
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.plan import Protection

# The gradients of some clients, each at its own parameters, in local step k.
Gradients = Callable[[Array, Sequence[Client], int], Array]


def plain_gradients(theta: Array, clients: Sequence[Client], k: int) -> Array:
    """Mean gradients without clip or noise, for steps whose result stays on the client."""
    data = grouped(clients).heads_data
    if data is not None:
        S = gradient_sums(theta, data, math.inf)
        S /= data.sizes_like(S)
        return S
    pairs = zip(theta, clients, strict=True)
    return np.stack([D.gradient_sum(y, math.inf).value / D.size for y, (_, D) in pairs])


def released_gradients(plan: Protection, noise: Noise) -> Gradients:
    """Clipped, noisy mean gradients, for steps whose result is sent: every one is charged."""
    return lambda theta, clients, k: noisy_gradients(theta, clients, plan, noise, draw=k)


def batch(data: Records, step: int, size: int | None) -> Records:
    """The records of one step: all, or a part of about `size` of them, in turn.

    The parts are fixed and each record is in one, so a pass over them uses every record once. A
    part takes every so-many-th record: records that are sorted by class are mixed.
    """
    parts = 1 if size is None else math.ceil(data.size / size)
    if parts <= 1:
        return data
    turn = step % parts
    return data.part(slice(turn, None, parts))


@dataclass(frozen=True, kw_only=True)
class PersonalSteps(LocalSteps):
    r"""A client that takes K steps of SGD with learning rate $\eta_2$ on its own records.

    By default they start from the common model and their drift is sent, as in FedAvg. One that
    sends anything else adds to no sum, unless it says itself what it would add.

    Attributes:
        batch_size: how many records a step uses; all by default, and always with a budget.

    >>> PersonalSteps(lr=0.1, steps=5, batch_size=100).disclosure.uses_part
    True
    """

    keeps_models: ClassVar[bool] = True
    batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.batch_size
        require(size is None or size >= 1, f"batch_size={size}: must be at least 1")

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            releases=lambda rounds: rounds * self.steps,
            shares_noise=False,  # the next step starts from what the client released in the last
            record_moves_others=False,
            uses_part=self.batch_size is not None,
        )

    def descend(
        self, y: Array, done: Array, clients: Sequence[Client], gradients: Gradients
    ) -> Array:
        r"""$y_{k+1} = y_k - \eta_2\,g(y_k)$, K times.

        Args:
            y: where each client begins, `(n, K, F+1)`.
            done: how many steps each client took before, `(n,)`; it says whose turn it is.
            clients: whose records.
            gradients: `plain_gradients` or `released_gradients`.
        """
        whole, size = grouped(clients), self.batch_size
        if size is None or whole.largest <= size:
            for k in range(self.steps):
                y = self._moved(y, gradients(y, whole, k))
            return y
        for k in range(self.steps):
            parts = zip(whole, done.tolist(), strict=True)
            group = Group(Client(i, batch(D, s + k, size)) for (i, D), s in parts)
            y = self._moved(y, gradients(y, group, k))
        return y

    def _moved(self, y: Array, g: Array) -> Array:
        g *= self.lr  # it is nobody else's
        return np.subtract(y, g, out=g)

    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Any,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Any]:
        """FedAvg's: the drift of K charged steps from the common model; the state counts them."""
        x = np.broadcast_to(received["theta"], (len(clients), *received["theta"].shape))
        y = self.descend(x, state.steps, clients, released_gradients(plan, noise))
        # McMahan et al., Algorithm 1, ClientUpdate.
        return x - y, state._replace(steps=state.steps + self.steps)

    def contribute(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Any,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Any]:
        """The same where only a total is seen, of one step on all records."""
        whole = self.steps == 1 and self.batch_size is None
        require(whole, f"steps={self.steps}: only one step on all records can be added up")
        added = noisy_sums(received["theta"], clients, plan, noise)
        return added, state._replace(steps=state.steps + 1)


@dataclass(frozen=True, kw_only=True)
class TunedSteps(PersonalSteps):
    """A client that tunes its model further before it uses it.

    These steps start from its model, or the common one, and nothing that is ever sent depends on
    them. So they are plain SGD even with a budget, and cost nothing. The promise covers what the
    server and everyone behind it sees: the tuned model must stay where it is.

    Attributes:
        tune_lr: the learning rate of the tuning.
        tune_steps: how many steps; 0 is none.
        tune_batch_size: how many records a step uses; all by default.
    """

    tune_lr: float
    tune_steps: int
    tune_batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.tune_lr > 0, f"tune_lr={self.tune_lr}: must be > 0")
        require(self.tune_steps >= 0, f"tune_steps={self.tune_steps}: must be >= 0")
        size = self.tune_batch_size
        require(size is None or size >= 1, f"tune_batch_size={size}: must be at least 1")

    @property
    def disclosure(self) -> Disclosure:
        return super().disclosure  # nothing that is sent depends on the tuning

    def tune(self, models: Array, clients: Sequence[Client]) -> Array:
        """Each client's model `(n, K, F+1)` after the tuning."""
        if self.tune_steps == 0:
            return models
        sgd = PersonalSteps(lr=self.tune_lr, steps=self.tune_steps, batch_size=self.tune_batch_size)
        return sgd.descend(models, np.zeros(len(clients), np.int64), clients, plain_gradients)
