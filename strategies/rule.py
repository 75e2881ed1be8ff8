"""What every server rule shares: the learning rate, and the step."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require

Schedule = Literal["constant", "linear", "cosine", "inverse-sqrt"]


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    r"""A server rule: what to do with an aggregate, as pure functions of arrays.

    A rule turns `G` into a direction; the step is $\theta \leftarrow \theta - \eta_t\,$direction.
    Everything it reads has been released already, so it costs no privacy.

    Attributes:
        lr: the learning rate $\eta_0$.
        setup_kind: the name of what clients release before the first round, if the rule needs it.
        schedule: how the rate falls over the run: not at all, linearly or as a half cosine to zero,
            or as $1/\sqrt{t+1}$.
    """

    setup_kind: ClassVar[str | None] = None

    lr: float
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        require(0 < self.lr < math.inf, f"lr={self.lr}: must be a finite number > 0")

    def learning_rate(self, t: int, rounds: int) -> float:
        """The learning rate of round `t` (from 0) of `rounds`."""
        if self.schedule == "linear":
            return self.lr * (1 - t / rounds)
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * t / rounds))
        if self.schedule == "inverse-sqrt":
            return self.lr / math.sqrt(t + 1)
        return self.lr

    def broadcast(self, state: "ServerState") -> dict[str, Array]:
        """What every client receives at the beginning of a round, by name."""
        return {"theta": state.theta}

    def release_shape(self, theta: Array) -> tuple[int, ...]:
        """The shape of what one client releases in a round."""
        return theta.shape

    def setup_shape(self, theta: Array) -> tuple[int, ...]:
        """The shape of what one client releases before the first round, if it does."""
        return ()

    @abstractmethod
    def init(self, theta: Array) -> Any:
        """The buffers before the first round: a NamedTuple of arrays."""

    def set_up(self, state: "ServerState", G: Array) -> "ServerState":
        """Take in the aggregate of what clients released before the first round."""
        return state

    @abstractmethod
    def update(self, buffers: Any, G: Array, t: int) -> tuple[Any, Array]:
        """New buffers, and the direction of round `t` (from 0)."""


class Nothing(NamedTuple):
    """Nothing is remembered, or shared beyond what the rule broadcasts."""


class ServerState(NamedTuple):
    """All the server knows between rounds.

    Attributes:
        theta: the parameters.
        buffers: the rule's memory.
        t: rounds done.
        shared: what all clients receive whatever the rule is: a NamedTuple of arrays.
    """

    theta: Array
    buffers: Any
    t: int
    shared: Any = Nothing()


def start(rule: Rule, theta: Array) -> ServerState:
    """The state before the first round."""
    return ServerState(theta, rule.init(theta), 0)


def broadcast(rule: Rule, state: ServerState) -> dict[str, Array]:
    """All that clients receive at the beginning of a round, by name."""
    shared: dict[str, Array] = state.shared._asdict()
    return rule.broadcast(state) | shared


def step(rule: Rule, state: ServerState, G: Array, rounds: int) -> ServerState:
    """Apply one aggregate: the state after the round."""
    buffers, direction = rule.update(state.buffers, G, state.t)
    theta = state.theta - rule.learning_rate(state.t, rounds) * direction
    return state._replace(theta=theta, buffers=buffers, t=state.t + 1)
