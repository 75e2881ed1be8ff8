"""Clients behind Flower's handler: arrays in, a release out, whoever moves them.

`fit` is all there is to a client here. The names of the arrays travel in its config, because
Flower's `NumPyClient` has lists only.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.client import NumPyClient

from fedsofim.clients.program import Client, Noise, Program, transformed
from fedsofim.core.arrays import Array, flatten, unflatten
from fedsofim.core.errors import require
from fedsofim.core.participation import SETUP
from fedsofim.federation.owner import Owner, Request
from fedsofim.federation.replies import MEMORY
from fedsofim.privacy.plan import Plan

Fit = tuple[list[Array], int, dict[str, Any]]


class SimulatedClients(NumPyClient):
    """Some clients of a simulation; what they remember comes and goes with the messages."""

    def __init__(
        self, program: Program, plan: Plan, clients: Sequence[Client], noise: Noise
    ) -> None:
        self.program, self.plan, self.clients, self.noise = program, plan, clients, noise

    def fit(self, parameters: list[Array], config: dict[str, Any]) -> Fit:
        """The releases of all these clients, stacked, and what they remember after it."""
        sizes = [client.data.size for client in self.clients]
        if config["round"] == SETUP:
            released = self.program.setup(self.clients, self.plan, self.noise)
            require(released is not None, "these clients release nothing before the first round")
            return [np.asarray(released)], sum(sizes), {"names": ["release"], "sizes": sizes}
        arrays = dict(zip(config["names"], parameters, strict=True))
        received = {k: v for k, v in arrays.items() if not k.startswith(MEMORY)}
        memory = {k.removeprefix(MEMORY): v for k, v in arrays.items() if k.startswith(MEMORY)}
        blank = self.program.init(received["theta"], len(self.clients))
        releases, state = self.program.release(
            received,
            transformed(self.clients, received),
            unflatten(blank, memory),
            self.plan,
            self.noise,
        )
        after = {MEMORY + name: rows for name, rows in flatten(state).items()}
        values = {"names": ["release", *after], "sizes": sizes}
        return [releases, *after.values()], sum(sizes), values


class DeployedClient(NumPyClient):
    """An owner of data: one client, with its own records, ledger and noise."""

    def __init__(self, program: Program, plan: Plan, owner: Owner) -> None:
        self.program, self.plan, self.owner = program, plan, owner

    def fit(self, parameters: list[Array], config: dict[str, Any]) -> Fit:
        """The owner's release, if its budget covers it; what it remembers stays on its disk."""
        received = dict(zip(config["names"], parameters, strict=True))
        request = Request(run=config["run"], t=config["round"], asked=config["job"])
        if request.t == SETUP:
            release, charged = self.owner.setup(self.program, self.plan, request)
        else:
            release, charged = self.owner.release(self.program, self.plan, received, request)
        size = self.owner.client.data.size
        values = {"names": ["release"], "sizes": [size], "charged": charged}
        return [np.asarray(release)[None]], size, values
