"""The local engine: server and clients in one process, nothing between them."""

from functools import partial
from typing import Any, Protocol

import numpy as np

from fedsofim.clients.program import transformed
from fedsofim.core.arrays import Array, put, take
from fedsofim.core.rng import Purpose, stream
from fedsofim.runs.experiment import Experiment, RunState, refresh
from fedsofim.strategies.aggregation import aggregate
from fedsofim.strategies.rule import broadcast, step


class OnRound(Protocol):
    """Called after every round."""

    def __call__(self, now: RunState, G: Array | None, **notes: Any) -> bool:
        """Record a round, and say whether to stop.

        Args:
            now: the new state.
            G: the aggregate; `None` if the round was skipped.
            **notes: what else belongs in the round's row, such as the replies that were dropped.
        """


def run(experiment: Experiment, state: RunState, on_round: OnRound) -> RunState:
    """Train from `state`, the initial one or a checkpoint's, to the last round."""
    config, clients = experiment.config, experiment.clients
    sizes = np.array([client.data.size for client in clients])
    server, memory = state
    if server.t == 0:
        noise = partial(stream, config.seed, Purpose.SETUP_NOISE, 0)
        released = config.client.setup(clients, experiment.plan, noise)
        if released is not None:
            setup = aggregate(released, sizes, config.aggregation, config.malicious_fraction)
            server = config.strategy.set_up(server, setup)
    while server.t < config.rounds:
        noise = partial(stream, config.seed, Purpose.NOISE, server.t)
        present = config.schedule.present(server.t)
        received = broadcast(config.strategy, server)
        clients = transformed(clients, received)
        group, remembered = [clients[i] for i in present], take(memory, present)
        releases, new = config.client.release(received, group, remembered, experiment.plan, noise)
        memory = put(memory, present, new)
        G = aggregate(releases, sizes[present], config.aggregation, config.malicious_fraction)
        server = refresh(experiment, step(config.strategy, server, G, config.rounds))
        if on_round(RunState(server, memory), G):
            break
    return RunState(server, memory)
