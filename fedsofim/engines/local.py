"""The local engine: server and clients in one process, nothing between them."""

from collections.abc import Callable
from functools import partial

import numpy as np

from clients.program import transformed
from fedsofim.experiment import Experiment, RunState, refresh
from fedsofim.linalg import Array
from fedsofim.rng import Purpose, stream
from strategies.rule import aggregate, broadcast, step

# Called after every round with the new state and the aggregate; returns whether to stop.
OnRound = Callable[[RunState, Array], bool]


def run(experiment: Experiment, state: RunState, on_round: OnRound) -> RunState:
    """Train from `state`, the initial one or a checkpoint's, to the last round."""
    config, clients = experiment.config, experiment.clients
    sizes = np.array([client.data.size for client in clients])
    server, memory = state
    if server.t == 0:
        noise = partial(stream, config.seed, Purpose.SETUP_NOISE, 0)
        released = config.client.setup(clients, experiment.plan, noise)
        if released is not None:
            server = config.strategy.set_up(server, aggregate(released, sizes, config.aggregation))
    while server.t < config.rounds:
        noise = partial(stream, config.seed, Purpose.NOISE, server.t)
        received = broadcast(config.strategy, server)
        clients = transformed(clients, received)
        releases, memory = config.client.release(received, clients, memory, experiment.plan, noise)
        G = aggregate(releases, sizes, config.aggregation)
        server = refresh(experiment, step(config.strategy, server, G, config.rounds))
        if on_round(RunState(server, memory), G):
            break
    return RunState(server, memory)
