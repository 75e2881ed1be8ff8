"""What every server rule shares: its state, and the step."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fedsofim.core.arrays import Array


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    r"""A server rule: what to do with an aggregate, as pure functions of arrays.

    A rule turns `G` into a step: $\theta \leftarrow \theta - $ step. Everything it reads has been
    released already, so it costs no privacy. Its fields are its settings; one with a learning rate
    holds a `Rate`.

    Attributes:
        client: the client it goes with if nothing else is said: a name, or a class.
        setup_kind: the name of what clients release before the first round, if the rule needs it.
    """

    client: ClassVar[str | type] = "gradient"
    setup_kind: ClassVar[str | None] = None

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
    def update(self, buffers: Any, G: Array, t: int, rounds: int) -> tuple[Any, Array]:
        """New buffers, and the step to subtract in round `t` (from 0) of `rounds`."""


class Empty(NamedTuple):
    """No arrays: the buffers of a rule without memory, or nothing shared beside the broadcast."""


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
    shared: Any = Empty()


def start(rule: Rule, theta: Array) -> ServerState:
    """The state before the first round."""
    return ServerState(theta, rule.init(theta), 0)


def broadcast(rule: Rule, state: ServerState) -> dict[str, Array]:
    """All that clients receive at the beginning of a round, by name."""
    shared: dict[str, Array] = state.shared._asdict()
    return rule.broadcast(state) | shared


def step(rule: Rule, state: ServerState, G: Array, rounds: int) -> ServerState:
    """Apply one aggregate: the state after the round."""
    buffers, change = rule.update(state.buffers, G, state.t, rounds)
    return state._replace(theta=state.theta - change, buffers=buffers, t=state.t + 1)
