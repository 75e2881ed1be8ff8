"""The budget a user asks for, and the plan that keeps it: one frozen value that everyone reads."""

import math
from dataclasses import dataclass
from typing import Literal

from fedsofim.config import require
from fedsofim.privacy.accounting import GaussianEvent, compose, epsilon_of, mu_of
from fedsofim.privacy.mechanism import Adjacency, sensitivity

Aggregation = Literal["uniform", "size"]
Trust = Literal["server", "aggregate"]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What is promised for one record, over the whole run.

    Attributes:
        epsilon: the budget; `inf` is no privacy.
        delta: the probability with which the promise may fail.
        clip: the largest norm of one record's gradient, C in the paper.
        noise_multiplier: the noise std on the sum over `clip`, z. When given, it is used as it is
            and epsilon becomes what it costs; otherwise the budget decides it.
        adjacency: what may change about a record; client sizes are public either way.
        trust: who sees what. `server`: every single release, so each client hides its own records.
            `aggregate`: secure aggregation shows the sum alone, so the clients share the noise.
    """

    epsilon: float
    delta: float
    clip: float
    noise_multiplier: float | None = None
    adjacency: Adjacency = "replace-one"
    trust: Trust = "server"

    def __post_init__(self) -> None:
        require(self.epsilon > 0, f"epsilon={self.epsilon}: must be > 0 (inf for no privacy)")
        require(0 < self.delta < 1, f"delta={self.delta}: must be between 0 and 1")
        require(self.clip > 0, f"clip={self.clip}: must be > 0")
        z = self.noise_multiplier
        require(
            z is None or 0 <= z < math.inf, f"noise_multiplier={z}: must be a finite number >= 0"
        )
        require(
            math.isfinite(self.clip) or (math.isinf(self.epsilon) and not z),
            f"clip={self.clip}: without clipping no noise hides a record; "
            "give a finite clip, or privacy=none",
        )

    def plan(self, *, releases: float, clients: int, aggregation: Aggregation) -> "Plan":
        """The least noise that keeps the budget over `releases` releases of every record."""
        require(
            not (self.trust == "aggregate" and aggregation == "uniform"),
            "trust=aggregate: needs aggregation=size; in the mean of per-client means a record of "
            "a small client weighs more than the shared noise covers",
        )
        z = self.noise_multiplier
        if z is None:
            mu = mu_of(self.epsilon, self.delta)
            z = math.sqrt(releases) * sensitivity(1.0, self.adjacency) / mu
        return Plan(
            clip=self.clip,
            noise_multiplier=z,
            client_noise_multiplier=z / math.sqrt(clients) if self.trust == "aggregate" else z,
            releases=releases,
            delta=self.delta,
            adjacency=self.adjacency,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a run keeps its budget.

    Attributes:
        clip: each record's contribution to a sum is clipped to this norm.
        noise_multiplier: the noise std, over `clip`, on whatever the adversary sees.
        client_noise_multiplier: the part of it that one client adds.
        releases: how many releases of a clipped sum the whole run is worth to a record.
        delta: of the promise.
        adjacency: of the promise.
    """

    clip: float
    noise_multiplier: float
    client_noise_multiplier: float
    releases: float
    delta: float
    adjacency: Adjacency

    @property
    def noise_std(self) -> float:
        """The std of the noise on a sum."""
        return self.noise_multiplier * self.clip if self.noise_multiplier else 0.0

    def events(self, releases: float | None = None) -> list[GaussianEvent]:
        """What the first `releases` releases (all by default) did to one record."""
        count = self.releases if releases is None else releases
        return [GaussianEvent(sensitivity(self.clip, self.adjacency), self.noise_std, count)]

    def mu(self, releases: float | None = None) -> float:
        """The GDP parameter after `releases` releases."""
        return compose(self.events(releases))

    def epsilon(self, releases: float | None = None) -> float:
        """The epsilon spent after `releases` releases; `inf` where there is no privacy."""
        return epsilon_of(self.mu(releases), self.delta)
