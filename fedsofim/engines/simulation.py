"""The clients' side of a round, in one process: from what they receive to their aggregate."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsofim.clients import Client
from fedsofim.clients.program import release_stage, transformed
from fedsofim.clients.together import Crowd, round_mean, stage_mean, stage_sums
from fedsofim.config.schema import Config
from fedsofim.core.arrays import Array, put, take
from fedsofim.models.head import examples_of
from fedsofim.privacy.plan import Plan, Protection
from fedsofim.strategies.aggregation import aggregate
from fedsofim.strategies.stage import stage_std


class Simulation:
    """All clients of a run, or of a stack of runs on the same records.

    Args:
        config: the run's, or the first of a stack: what all of them share.
        clients: with their records.
        plan: the clip and the noise, of one run or stacked.
        stacked: whether it is a stack of runs.
    """

    def __init__(
        self, config: Config, clients: Sequence[Client], plan: Protection, *, stacked: bool = False
    ) -> None:
        self.config, self.plan, self.stacked = config, plan, stacked
        self.exact = config.privacy.noise == "exact"
        # A stack's heads have no common grid: they add up floats, equal to rounding.
        self.together = config.sharing is not None and not stacked
        self.clients = list(clients)  # under the last transform that was received
        self.sizes = np.array([client.data.size for client in clients])

    def stage(self, t: int, received: Mapping[str, Array], plan: Plan) -> tuple[Array, float]:
        """The aggregate of stage `t`, and the std of the noise in it; for a stack the same for all.

        Args:
            t: of the stage, -1 for the last before the first round.
            received: what the server broadcast, by name.
            plan: the noise; all of a stack share it.
        """
        config, stage = self.config, self.config.stages[t]
        std = stage_std(stage, t, plan, self.sizes, config.aggregation)
        if self.together:
            added = stage_sums(stage, t, self.clients, received, plan, config.noise(t))
            G = stage_mean(stage, t, plan, added.sum(axis=0), self._crowd(self.sizes))
            return G.astype(examples_of(self.clients[0].data).x.dtype), std
        released = release_stage(stage, t, self.clients, received, plan, config.noise(t))
        how, fraction = config.aggregation, config.malicious_fraction
        return aggregate(released, self.sizes, how, fraction), std

    def round(self, t: int, received: Mapping[str, Array], memory: Any) -> tuple[Array, Any]:
        """The aggregate of round `t`, and what the clients remember after it.

        Args:
            t: the round, from 0.
            received: what the server broadcast, by name; arrays may be stacked.
            memory: what all clients remember, stacked by client.
        """
        config, noise = self.config, self.config.noise(t)
        present = config.schedule.present(t)
        self.clients = transformed(self.clients, received, self.exact)
        if self.together:
            group, remembered = [self.clients[i] for i in present], take(memory, present)
            program, crowd = config.client, self._crowd(self.sizes[present])
            added, new = program.contribute(received, group, remembered, self.plan, noise)
            G = round_mean(program, received, self.plan, added.sum(axis=0), crowd)
            new = program.train_own(received, group, new)
            return G.astype(received["theta"].dtype), put(memory, present, new)
        # Networks one by one, with equal results: beside what clients keep and send there is then
        # only ever one network, and it stays in the cache for all of its steps.
        groups = [present] if config.model.linear else np.split(present, len(present))
        parts = []
        for who in groups:
            group, remembered = [self.clients[i] for i in who], take(memory, who)
            sent, new = config.client.release(received, group, remembered, self.plan, noise)
            parts.append((sent, config.client.train_own(received, group, new)))
        releases, new = parts[0] if len(parts) == 1 else joined(parts)
        return self._aggregate(releases, self.sizes[present]), put(memory, present, new)

    def _crowd(self, sizes: Array) -> Crowd:
        return Crowd(len(sizes), int(sizes.sum()), self.clients[0].data)

    def _aggregate(self, releases: Array, sizes: Array) -> Array:
        how, fraction = self.config.aggregation, self.config.malicious_fraction
        return aggregate(releases, sizes, how, fraction, stacked=self.stacked)


def joined(parts: Sequence[tuple[Array, Any]]) -> tuple[Array, Any]:
    """What several groups of clients released and remember, as that of one group."""
    releases, states = zip(*parts, strict=True)
    new = [np.concatenate(rows) for rows in zip(*states, strict=True)]
    return np.concatenate(releases), type(states[0])(*new)
