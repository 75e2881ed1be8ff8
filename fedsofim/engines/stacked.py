"""The stacked engine: many configurations in one pass over the data.

Configurations that differ only in what the server does, in the budget or in the clip work on the
same records, so their heads are stacked `(S, K, F+1)` and every matrix product serves all of them.
They share the noise draws of their seed, each at its own scale, so each result is that of a run of
its own (to float32 rounding: the products are blocked differently).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedsofim.config.schema import Config
from fedsofim.core.arrays import Array
from fedsofim.core.sums import Adjacency
from fedsofim.core.threads import one_thread_a_product
from fedsofim.engines.simulation import Simulation
from fedsofim.privacy.plan import Plan
from fedsofim.runs.experiment import Experiment, begin, refresh
from fedsofim.strategies.rule import ServerState, broadcast, stage_broadcast, start, step


def stack_key(config: Config) -> Hashable:
    """Configurations with equal keys can be stacked."""
    sent = config.strategy.broadcast(start(config.strategy, np.zeros((2, 2), np.float32)))
    return (
        config.dataset,
        config.backbone,
        config.features,
        config.partition,
        config.client,
        config.aggregation,
        config.malicious_fraction,
        config.participation,
        config.rounds,
        config.seed,
        config.private,
        config.privacy.adjacency,
        tuple(sorted(sent)),
        config.transform,
        # What stages make of the records, all heads share.
        (config.stages, tuple(e.mu for e in config.plan().stage_events()), config.plan().sharers),
        # A network is never stacked, nor is exact noise, which no two heads share.
        config.model if config.model.linear and config.privacy.noise == "seeded" else object(),
    )


@dataclass(frozen=True)
class StackedPlan:
    """The plans of a stack, as the clients see them."""

    plans: tuple[Plan, ...]

    @cached_property
    def clip(self) -> Array:
        """The clip of each head, `(S, 1, 1)`."""
        return _column([plan.clip for plan in self.plans])

    @property
    def adjacency(self) -> Adjacency:
        """The same for all."""
        return self.plans[0].adjacency

    @cached_property
    def client_noise_multiplier(self) -> Array:
        """The noise of each head, `(S, 1, 1)`."""
        return _column([plan.client_noise_multiplier for plan in self.plans])


@one_thread_a_product()
def run(
    experiments: Sequence[Experiment], on_round: Callable[[list[ServerState], Any, Array], None]
) -> list[ServerState]:
    """Train a stack, from the first round to the last.

    Args:
        experiments: with the same clients and equal stack keys.
        on_round: called after every round with the new states, what clients remember, arrays
            `(n, S, ...)`, and the aggregates, `(S, ...)`.

    Returns:
        The last state of each.
    """
    first, config = experiments[0], experiments[0].config
    plan = StackedPlan(tuple(e.plan for e in experiments))
    simulation = Simulation(config, first.clients, plan, stacked=True)
    rules = [e.config.strategy for e in experiments]
    servers = [begin(e).server for e in experiments]
    memory = config.client.init(np.stack([e.theta for e in experiments]), len(first.clients))
    for t, stage in enumerate(config.stages, -len(config.stages)):
        G, std = simulation.stage(t, stage_broadcast(stage, servers[0]), first.plan)
        servers = [
            e.config.stages[t].fold(s, G, std)._replace(t=t + 1)
            for e, s in zip(experiments, servers, strict=True)
        ]
    for t in range(config.rounds):
        received = _stack([broadcast(r, s) for r, s in zip(rules, servers, strict=True)])
        Gs, memory = simulation.round(t, received, memory)
        servers = [
            refresh(e, step(e.config.strategy, s, G, config.rounds))
            for e, s, G in zip(experiments, servers, Gs, strict=True)
        ]
        on_round(servers, memory, Gs)
    return servers


def _column(values: Sequence[float]) -> Array:
    return np.array(values, np.float32)[:, None, None]


def _stack(broadcasts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Arrays by name, stacked; single numbers become `(S, 1, 1)`."""
    stacked = {name: np.stack([b[name] for b in broadcasts]) for name in broadcasts[0]}
    for name in stacked.keys() & {"U_A", "P"}:
        stacked[name] = stacked[name][0]  # from the probes or the stages alone: the same for all
    return {k: v[:, None, None] if v.ndim == 1 else v for k, v in stacked.items()}
