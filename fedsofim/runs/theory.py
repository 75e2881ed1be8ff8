"""The quantities of the paper's theory, measured in a simulation, round by round. NOT PRIVATE.

It reads every record's gradient without clip and noise, which only a simulator can. Nothing here
runs in a deployment: a server has no records, and no client imports this module. What it writes
says so.
"""

from collections.abc import Sequence

import numpy as np

from fedsofim.clients.group import mapped
from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.models.head import Examples, examples_of
from fedsofim.models.objective import Objective
from fedsofim.runs.directory import Row, finite
from fedsofim.runs.evaluation import noise_norm
from fedsofim.runs.experiment import Experiment
from fedsofim.strategies.rule import ServerState

NOTE = "not private: for simulations; it reads records without clip and noise"


class Theory:
    """What a simulator knows of each step.

    Args:
        experiment: a simulation, with the clients' records.
    """

    def __init__(self, experiment: Experiment) -> None:
        require(
            not experiment.deployed and bool(experiment.clients),
            "output.theory=true: reads records without clip and noise, so it is for simulations; "
            "leave it out",
        )
        self.experiment = experiment
        self._mapped: list[Examples] = []
        self._objective: Objective | None = None

    def objective(self, server: ServerState) -> Objective:
        """F over all clients' records, as they are mapped from the first round on."""
        if self._objective is None:
            parts, l2 = self._records(server), self.experiment.config.strategy.l2
            self._objective = Objective.of(parts, self._shares(parts), l2)
        return self._objective

    def row(self, before: ServerState, after: ServerState, G: Array) -> Row:
        r"""One round: $\theta_t$ and $M_{t-1}$ before it, $\theta_{t+1}$ and $M_t$ after it.

        Args:
            before: the server's state.
            after: its state after the step.
            G: the aggregate, without the penalty's gradient.
        """
        config, t, l2 = self.experiment.config, before.t, self.experiment.config.strategy.l2
        theta = before.theta.astype(np.float64)
        F, grad = self.objective(before).gradient(theta)
        clipped = self._clipped(before) + l2 * theta
        released = G + l2 * theta
        noise = noise_norm(self.experiment, t) or 0.0
        step = theta - after.theta
        rate = getattr(config.strategy, "rate", None)
        row: Row = {
            "round": t + 1,
            "objective": F,
            "gradient_norm": _norm(grad),
            "clip_bias": _norm(clipped - grad),  # |zeta_t|, Eq. (3)
            "noise_variance": noise**2 / theta.size,  # nu_t^2, Eq. (5)
            "noise_norm": _norm(released - clipped),  # |xi_t|, as it was drawn
            "clipped_norm": _norm(clipped),  # |g_clip|
            "aggregate_norm": _norm(released),  # |G_t|
            "theta_norm": _norm(theta),
            **config.strategy.describe(after.buffers, t),
            "cosine_step": _cosine(step, grad),
            "cosine_aggregate": _cosine(released, grad),
            "rate": None if rate is None else rate.at(t, config.rounds),
        }
        return {key: finite(value) for key, value in row.items()} | {"note": NOTE}

    def _records(self, server: ServerState) -> list[Examples]:
        """Every client's records; the map, if there is one, stays as it is in the first round."""
        if not self._mapped:
            clients = mapped(self.experiment.clients, server.shared)
            self._mapped = [examples_of(client.data) for client in clients]
        return self._mapped

    def _shares(self, parts: Sequence[Examples]) -> Array:
        """What each client counts in the aggregate."""
        sizes = np.array([D.size for D in parts], np.float64)
        if self.experiment.config.aggregation == "uniform":
            sizes = np.ones(len(parts))
        return np.asarray(sizes / sizes.sum())

    def _clipped(self, server: ServerState) -> Array:
        """The aggregate without its noise, g_clip in the paper."""
        records = self._records(server)
        present = [records[i] for i in self.experiment.config.schedule.present(server.t)]
        total = np.zeros(server.theta.shape)
        for D, share in zip(present, self._shares(present), strict=True):
            S = D.gradient_sum(server.theta, self.experiment.plan.clip).value
            total += share / D.size * S
        return total


def _norm(v: Array) -> float:
    return float(np.linalg.norm(v))


def _cosine(u: Array, v: Array) -> float:
    size = _norm(u) * _norm(v)
    return float((u * v).sum()) / size if size else 0.0
