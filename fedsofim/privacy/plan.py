"""The budget a user asks for, and the plan that keeps it: one frozen value that everyone reads."""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from fedsofim.core.arrays import Scale
from fedsofim.core.errors import require
from fedsofim.core.sums import Adjacency
from fedsofim.privacy.accounting import LARGEST_DELTA, GaussianEvent, compose, epsilon_of, mu_of
from fedsofim.privacy.mechanism import sensitivity
from fedsofim.privacy.shared import client_part

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
            `aggregate`: secure aggregation shows the sum alone, so the clients share the noise, and
            each adds what the fewest honest ones in a sum need.
        noise: of a simulation. `seeded` is fast and can be repeated; `exact` is what a deployed
            client adds, integers from the system's entropy on sums of integers.
    """

    epsilon: float
    delta: float
    clip: float
    noise_multiplier: float | None = None
    adjacency: Adjacency = "replace-one"
    trust: Trust = "server"
    noise: Literal["seeded", "exact"] = "seeded"

    def __post_init__(self) -> None:
        require(self.epsilon > 0, f"epsilon={self.epsilon}: must be > 0 (inf for no privacy)")
        require(
            0 < self.delta < LARGEST_DELTA,
            f"delta={self.delta}: must be between 0 and {LARGEST_DELTA}; it is the chance that a "
            "record is given away whole, so keep it below one over the number of records",
        )
        clip, usual = self.clip, 1e-6 <= self.clip <= 1e6  # where float32 is exact enough
        require(usual or clip == math.inf, f"clip={clip}: must be between 1e-6 and 1e6, or inf")
        z = self.noise_multiplier
        require(
            z is None or 0 <= z < math.inf, f"noise_multiplier={z}: must be a finite number >= 0"
        )
        require(z is None or z <= 1e30, f"noise_multiplier={z}: at most 1e30")
        require(
            math.isfinite(self.clip) or (math.isinf(self.epsilon) and not z),
            f"clip={self.clip}: without clipping no noise hides a record; "
            "give a finite clip, or privacy=none",
        )
        require(
            math.isfinite(self.clip) or self.trust == "server",
            f"clip={self.clip}: with trust=aggregate clients add integers on a grid that the clip "
            "decides; give a finite clip",
        )

    def doubt(self, records: int) -> str | None:
        """What is wrong with this delta for so many records, if anything.

        To publish a record picked at random, as it is, is (0, 1/n)-DP: a delta above that would
        allow it. n counts the records of all clients, as the promise is made to each of them.
        """
        if not (records and math.isfinite(self.epsilon) and self.delta > 1 / records):
            return None
        return (
            f"privacy.delta={self.delta:g} is above one over the number of records, "
            f"{1 / records:.2g}: giving a whole record away would keep this promise"
        )

    def plan(
        self, *, releases: float, clients: int, aggregation: str, shares: tuple[float, ...] = ()
    ) -> "Plan":
        r"""The least noise that keeps the budget.

        Args:
            releases: of a sum clipped at `clip`, over the whole run.
            clients: whose noise adds up with `trust=aggregate`: the fewest honest ones in a sum.
            aggregation: how the server combines them.
            shares: the part of $\mu^2$ that each stage before the first round may spend; where
                rounds release nothing, relative to their sum.
        """
        require(
            self.trust == "server" or aggregation == "size",
            "trust=aggregate: needs aggregation=size; in the mean of per-client means a record of "
            "a small client weighs more than the shared noise covers, and a robust mean sees "
            "single releases",
        )
        if not releases:  # then stages spend all there is
            shares = tuple(share / sum(shares) for share in shares)
        require(
            all(share > 0 for share in shares) and (sum(shares) < 1 or not releases),
            f"shares={shares}: the stages before the first round must leave some of the budget",
        )
        z = self.noise_multiplier
        if z is None:
            mu = mu_of(self.epsilon, self.delta) * math.sqrt(1 - sum(shares) if releases else 1)
            z = math.sqrt(releases or bool(shares)) * sensitivity(1.0, self.adjacency) / mu
        return Plan(
            clip=self.clip,
            noise_multiplier=z,
            releases=releases,
            delta=self.delta,
            adjacency=self.adjacency,
            shares=shares,
            sharers=clients if self.trust == "aggregate" else 1,
        )


class Protection(Protocol):
    """What a client must know of a plan; for a stack of heads, one number each, `(S, 1, 1)`."""

    @property
    def clip(self) -> Scale:
        """The largest norm of one record's contribution."""

    @property
    def adjacency(self) -> Adjacency:
        """What may change about a record."""

    @property
    def client_noise_multiplier(self) -> Scale:
        """The noise that one client adds to a sum, over `clip`."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    r"""How a run keeps its budget.

    Attributes:
        clip: each record's contribution to a sum is clipped to this norm.
        noise_multiplier: the noise std, over `clip`, on whatever the adversary sees, z; where
            rounds release nothing, that of one release that would spend what the stages do.
        releases: how many releases of a clipped sum the whole run is worth to a record.
        delta: of the promise.
        adjacency: of the promise.
        shares: the part of $\mu^2$ that each stage before the first round spends.
        sharers: how many clients' noise adds up to that multiplier.
    """

    clip: float
    noise_multiplier: float
    releases: float
    delta: float
    adjacency: Adjacency
    shares: tuple[float, ...] = ()
    sharers: int = 1

    @property
    def noise_std(self) -> float:
        """The std of the noise on a sum."""
        return self.noise_multiplier * self.clip if self.noise_multiplier else 0.0

    @property
    def client_noise_multiplier(self) -> float:
        """The noise that one client adds."""
        return client_part(self.noise_multiplier, self.sharers)

    def stage_multiplier(self, t: int, unit_sensitivity: float) -> float:
        """The noise that one client adds in stage `t`, -1 being the last before the first round.

        Args:
            t: of the stage.
            unit_sensitivity: of that release, over the bound of one record's contribution.
        """
        if not self.noise_multiplier:
            return 0.0
        return client_part(unit_sensitivity / self.stage_events()[t].mu, self.sharers)

    def stage_events(self) -> list[GaussianEvent]:
        """What each stage does to one record, from what the rounds do and the shares."""
        rounds = GaussianEvent(sensitivity(1.0, self.adjacency), self.noise_multiplier)
        worth, left = (self.releases, 1 - sum(self.shares)) if self.releases else (1.0, 1.0)
        return [
            GaussianEvent(rounds.mu * math.sqrt(worth * share / left), 1.0) for share in self.shares
        ]

    def events(self, releases: float | None = None) -> list[GaussianEvent]:
        """What all stages and the first `releases` releases (all by default) did to one record."""
        count = self.releases if releases is None else releases
        rounds = GaussianEvent(sensitivity(self.clip, self.adjacency), self.noise_std, count)
        return [*self.stage_events(), rounds]

    def mu(self, releases: float | None = None) -> float:
        """The GDP parameter after `releases` releases."""
        return compose(self.events(releases))

    def epsilon(self, releases: float | None = None) -> float:
        """The epsilon spent after `releases` releases; `inf` where there is no privacy."""
        return epsilon_of(self.mu(releases), self.delta)
