"""The Ditto client: it trains the common model, and beside it one of its own that stays near."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsofim.clients.group import Client
from fedsofim.clients.personal import PersonalSteps, plain_gradients
from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.privacy.disclosure import Disclosure


class DittoState(NamedTuple):
    """What a client remembers.

    Attributes:
        theta: its own parameters $v_i$, `(n, K, F+1)`.
        steps: how many steps it took for the common model, `(n,)`.
        own: how many for its own, `(n,)`.
    """

    theta: Array
    steps: Array
    own: Array


@dataclass(frozen=True, kw_only=True)
class Ditto(PersonalSteps):
    r"""The client of Ditto.

    In a round it is FedAvg's: K steps from the broadcast $w$, of which it sends the drift. Beside
    them it trains a model of its own, which is pulled to $w$:

    $$\min_{v_i}\; F_i(v_i) + \tfrac{\lambda}{2}\lVert v_i - w\rVert^2 \qquad
      v_i \leftarrow (1-p)\,(v_i - \eta\,\nabla F_i(v_i)) + p\,w,
      \quad p = \frac{\eta\lambda}{1 + \eta\lambda}$$

    The paper steps along the gradient of both terms, which diverges for $\eta\lambda > 2$. This is
    the proximal step on the same objective: it is exact in the second term and good for every
    $\lambda$. At 0 a client trains alone, at infinity its model is $w$.

    Nothing that is sent depends on $v_i$. So its steps are plain even with a budget and cost
    nothing, as long as the model stays where it is; only the K steps from $w$ are charged.

    Attributes:
        own_lr: the learning rate of its own model, $\eta$.
        own_steps: how many steps its own model takes in a round.
        own_batch_size: how many records such a step uses; all by default.
        pull: how strongly its own model is pulled to the common one, $\lambda$.

    >>> Ditto(lr=0.1, steps=5, own_lr=0.1, own_steps=10, pull=1.0).disclosure.releases(70)
    350
    """

    own_lr: float
    own_steps: int
    own_batch_size: int | None = None
    pull: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.own_lr > 0, f"own_lr={self.own_lr}: must be > 0")
        require(self.own_steps >= 0, f"own_steps={self.own_steps}: must be >= 0")
        size = self.own_batch_size
        require(size is None or size >= 1, f"own_batch_size={size}: must be at least 1")
        require(self.pull >= 0, f"pull={self.pull}: must be >= 0")

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            releases=lambda rounds: rounds * self.steps,
            shares_noise=self.steps == 1,  # a second step starts from the client's own first
            record_moves_others=False,
            uses_part=self.batch_size is not None,  # of what is sent; v_i may use what it likes
        )

    def init(self, theta: Array, clients: int) -> DittoState:
        none = np.zeros(clients, np.int64)
        return DittoState(np.repeat(theta[None], clients, axis=0), none, none)

    def personal(self, theta: Array, clients: Sequence[Client], state: DittoState) -> Array:
        return state.theta

    def train_own(
        self, received: Mapping[str, Array], clients: Sequence[Client], state: DittoState
    ) -> DittoState:
        w, v, p = received["theta"], state.theta, 1 - 1 / (1 + self.own_lr * self.pull)
        sgd = PersonalSteps(lr=self.own_lr, steps=1, batch_size=self.own_batch_size)
        for k in range(self.own_steps):
            z = sgd.descend(v, state.own + k, clients, plain_gradients)
            z *= 1 - p
            z += p * w
            v = z  # Li et al., Algorithm 1, its last line as a proximal step
        return state._replace(theta=v, own=state.own + self.own_steps)
