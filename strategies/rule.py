"""What every server rule shares: its state, and the step."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array

if TYPE_CHECKING:
    from fedsofim.strategies.stage import Stage


class Descent(NamedTuple):
    """What the paper's analysis of one step (Lemmas 4.16 and 4.25) needs to know of a rule.

    Attributes:
        rho: the preconditioner's regulariser; 1 without one.
        beta: decay of the average that the preconditioner is built from.
        coupled: whether the preconditioner depends on the aggregate that it is applied to.
        departures: where the rule is not the one that is analysed, in words.
    """

    rho: float = 1.0
    beta: float = 0.0
    coupled: bool = False
    departures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    r"""A server rule: what to do with an aggregate, as pure functions of arrays.

    A rule turns `G` into a step: $\theta \leftarrow \theta - $ step. Everything it reads has been
    released already, so it costs no privacy. Its fields are its settings; one with a learning rate
    holds a `Rate`.

    Attributes:
        client: the client it goes with if nothing else is said: a name, or a class.
        l2: the weight of |theta|^2 / 2 in the loss (Remark 4.4). The term is public, so the server
            adds its gradient, l2 theta, to the aggregate, after clip and noise.
    """

    client: ClassVar[str | type] = "gradient"
    l2: float = 0.0

    def broadcast(self, state: "ServerState") -> dict[str, Array]:
        """What every client receives at the beginning of a round, by name."""
        return {"theta": state.theta}

    def release_shape(self, theta: Array) -> tuple[int, ...]:
        """The shape of what one client releases in a round."""
        return theta.shape

    @property
    def stages(self) -> tuple["Stage", ...]:
        """What clients release before the first round, for this rule; nothing by default."""
        return ()

    @property
    def descent(self) -> Descent | None:
        """What the paper proves about its steps, if anything."""
        return None

    def describe(self, buffers: Any, t: int) -> dict[str, float]:
        """The buffers after round `t` in a few numbers, for those who look into a simulation."""
        return {}

    @abstractmethod
    def init(self, theta: Array) -> Any:
        """The buffers before the first round: a NamedTuple of arrays."""

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
        t: rounds done; below 0, how many stages are still to come before the first.
        shared: what all clients receive whatever the rule is: a NamedTuple of arrays.
        average: of the iterates, if there is to be one; training does not read it.
    """

    theta: Array
    buffers: Any
    t: int
    shared: Any = Empty()
    average: Any = Empty()


def start(rule: Rule, theta: Array, stages: int = 0) -> ServerState:
    """The state before the first round, or before so many stages."""
    return ServerState(theta, rule.init(theta), -stages)


def broadcast(rule: Rule, state: ServerState) -> dict[str, Array]:
    """All that clients receive at the beginning of a round, by name."""
    shared: dict[str, Array] = state.shared._asdict()
    return rule.broadcast(state) | shared


def stage_broadcast(stage: "Stage", state: ServerState) -> dict[str, Array]:
    """What clients receive before the first round, by name."""
    return {name: array for name, array in state.shared._asdict().items() if name in stage.reads}


def for_raw(theta: Array, shared: Any) -> Array:
    r"""The parameters for records as they are, $\theta P$, where they were trained on $Px$."""
    P = getattr(shared, "P", None)
    if P is None:
        return theta
    return np.asarray(theta.astype(np.float64) @ P).astype(theta.dtype)


def step(rule: Rule, state: ServerState, G: Array, rounds: int) -> ServerState:
    """Apply one aggregate: the state after the round."""
    if rule.l2:
        G = G + rule.l2 * state.theta  # Remark 4.4
    buffers, change = rule.update(state.buffers, G, state.t, rounds)
    return state._replace(theta=state.theta - change, buffers=buffers, t=state.t + 1)
