"""The local engine: server and clients in one process, nothing between them."""

from typing import Any, Protocol

from fedsofim.core.arrays import Array
from fedsofim.core.threads import one_thread_a_product
from fedsofim.engines.simulation import Simulation
from fedsofim.runs.experiment import Experiment, RunState, refresh
from fedsofim.strategies.rule import broadcast, stage_broadcast, step


class OnRound(Protocol):
    """Called after every round, and after every stage before the first."""

    def __call__(self, now: RunState, G: Array | None, **notes: Any) -> bool:
        """Record a round, and say whether to stop.

        Args:
            now: the new state; its record is the session's to write.
            G: the aggregate; `None` if the round was skipped.
            **notes: what else belongs in the round's row, such as the replies that were dropped.
        """


@one_thread_a_product()
def run(experiment: Experiment, state: RunState, on_round: OnRound) -> RunState:
    """Train from `state`, the initial one or a checkpoint's, to the last round."""
    config = experiment.config
    simulation = Simulation(config, experiment.clients, experiment.plan)
    server, memory = state.server, state.clients
    while server.t < 0:
        stage = config.stages[server.t]
        G, std = simulation.stage(server.t, stage_broadcast(stage, server), experiment.plan)
        server = stage.fold(server, G, std)._replace(t=server.t + 1)
        if on_round(RunState(server, memory), G):
            return RunState(server, memory)
    while server.t < config.rounds:
        received = broadcast(config.strategy, server)
        G, memory = simulation.round(server.t, received, memory)
        server = refresh(experiment, step(config.strategy, server, G, config.rounds))
        if on_round(RunState(server, memory), G):
            break
    return RunState(server, memory)
