"""The clients' side of a round, in one process: from what they receive to their aggregate."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedsofim.clients import CLIENTS, Client
from fedsofim.clients.group import Group, transformed
from fedsofim.clients.program import release_stage
from fedsofim.clients.together import Crowd, round_mean, stage_mean, stage_sums
from fedsofim.config.schema import Config
from fedsofim.core.arrays import Array, Successor, Who, take
from fedsofim.core.threads import in_order, thread_count
from fedsofim.models.head import examples_of
from fedsofim.privacy.plan import Plan, Protection
from fedsofim.strategies.aggregation import Combined
from fedsofim.strategies.stage import stage_std

# Numbers that the clients of a group release: with what they come from, they stay in the cache.
GROUP = 1 << 16


class Simulation:
    """All clients of a run, or of a stack of runs on the same records.

    Clients are worked on in groups, on several threads; what groups release is added up in the
    order of the clients and not kept, so memory does not grow with their number, and neither groups
    nor threads show in a result.

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
        self._told: tuple[Array | None, ...] = ()  # what they are under; at first nobody knows
        self._groups: dict[tuple[int, int], Group] = {}
        self.sizes = np.array([client.data.size for client in clients])

    def stage(self, t: int, received: Mapping[str, Array], plan: Plan) -> tuple[Array, float]:
        """The aggregate of stage `t`, and the std of the noise in it; for a stack the same for all.

        Args:
            t: of the stage, -1 for the last before the first round.
            received: what the server broadcast, by name.
            plan: the noise; all of a stack share it.
        """
        config, stage, noise = self.config, self.config.stages[t], self.config.noise(t)
        std = stage_std(stage, t, plan, self.sizes, config.aggregation)
        like, everyone = examples_of(self.clients[0].data), np.arange(len(self.clients))
        length = stage.length(len(like.x) - 1, len(like.target))

        def work(who: Who) -> Array:
            group = self._group(who)
            if self.together:
                return np.asarray(stage_sums(stage, t, group, received, plan, noise).sum(axis=0))
            return release_stage(stage, t, group, received, plan, noise)

        parts = self._in_groups(work, everyone, length)
        if self.together:
            G = stage_mean(stage, t, plan, sum(parts), self._crowd(self.sizes))
            return G.astype(like.x.dtype), std
        return self._combined(parts, self.sizes, stacked=False), std

    def round(self, t: int, received: Mapping[str, Array], memory: Any) -> tuple[Array, Any]:
        """The aggregate of round `t`, and what the clients remember after it.

        Args:
            t: the round, from 0.
            received: what the server broadcast, by name; arrays may be stacked.
            memory: what all clients remember, stacked by client.
        """
        config, noise, program = self.config, self.config.noise(t), self.config.client
        present = config.schedule.present(t)
        sizes, after = self.sizes[present], Successor(memory, all=len(present) == len(self.sizes))
        self._transform(received)

        def work(who: Who) -> tuple[Who, Array, Any, Any]:
            group, remembered = self._group(who), take(memory, who)
            act = program.contribute if self.together else program.release
            sent, new = act(received, group, remembered, self.plan, noise)
            if self.together:
                sent = sent.sum(axis=0)
            return who, sent, remembered, program.train_own(received, group, new)

        def parts() -> Iterator[Array]:
            theta = received["theta"]
            groups = self._in_groups(work, present, theta.size, self._kernel_takes(theta))
            for who, sent, before, new in groups:
                after.put(who, before, new)
                yield sent

        if self.together:
            total = np.asarray(sum(parts()))
            G = round_mean(program, received, self.plan, total, self._crowd(sizes))
            G = G.astype(received["theta"].dtype)
        else:
            G = self._combined(parts(), sizes, stacked=self.stacked)
        return G, after.state

    def _transform(self, received: Mapping[str, Array]) -> None:
        """Put the clients under what the server broadcast."""
        told = tuple(received.get(name) for name in ("P", "U_G", "U_A"))
        if self._told and all(a is b for a, b in zip(told, self._told, strict=True)):
            return  # they are as they were
        now = transformed(self.clients, received, self.exact)
        if any(a.data is not b.data for a, b in zip(self.clients, now, strict=True)):
            self.clients = now
            for who, group in self._groups.items():
                group.renew(now[slice(*who)])
        self._told = told

    def _group(self, who: Who) -> Group:
        """These clients; neighbours are kept together from round to round."""
        if not isinstance(who, slice):
            return Group(self.clients[i] for i in who)
        key = who.start, who.stop
        if key not in self._groups:
            self._groups[key] = Group(self.clients[who])
        return self._groups[key]

    def _kernel_takes(self, theta: Array) -> bool:
        """Whether the sums of all clients at such parameters are the kernel's, on its threads."""
        data = None if self.exact else self._group(slice(0, len(self.clients))).heads_data
        return data is not None and all(run.taken for run in data.runs(theta))

    def _in_groups(
        self, work: Callable[[Who], Any], present: Array, length: int, shared_out: bool = False
    ) -> Iterator[Any]:
        """What `work` makes of groups of these clients, in order; each sends `length` numbers.

        If work on one group is shared out among threads, and all fit into it, there is one.
        """
        n, threads = len(present), 1 if self.exact else thread_count()
        if not self.config.model.linear:
            # One by one: beside what clients keep and send there is then only ever one network, and
            # it stays in the cache for all of its steps.
            return in_order(work, np.split(present, n), threads=1)
        if type(self.config.client) not in CLIENTS.values():
            return in_order(work, [present], threads=1)  # one's own may count on all, in one thread
        most = max(1, GROUP // max(1, length))
        shares = 1 if threads == 1 or (shared_out and n <= most) else 2 * threads
        cuts = pairwise((0, *(_even(self.sizes[present], shares) if shares > 1 else ()), n))
        groups = [
            slice(i, min(i + most, end)) for start, end in cuts for i in range(start, end, most)
        ]
        if n == len(self.clients):
            return in_order(work, groups, threads)
        return in_order(work, [present[group] for group in groups], threads)

    def _combined(self, parts: Iterator[Array], sizes: Array, *, stacked: bool) -> Array:
        config, done = self.config, 0
        combined = Combined(config.aggregation, config.malicious_fraction, stacked=stacked)
        for releases in parts:
            combined.add(releases, sizes[done : done + len(releases)])
            done += len(releases)
        return combined.result()

    def _crowd(self, sizes: Array) -> Crowd:
        return Crowd(len(sizes), int(sizes.sum()), self.clients[0].data)


def _even(sizes: Array, shares: int) -> list[int]:
    """Where to cut clients of these sizes into neighbours with about as many records each.

    >>> _even(np.array([10, 10, 10, 50, 20, 20]), 3)
    [3, 4]
    """
    middle = np.cumsum(sizes) - sizes / 2  # of each client, among all records
    share = (middle * (shares / max(1, sizes.sum()))).astype(np.intp)
    return [int(i) + 1 for i in np.flatnonzero(np.diff(share))]
