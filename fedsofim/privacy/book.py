"""The lines of an owner's account and what they come to: pure values, without files.

A line carries its number, the time, the hash of the line before, what it says, and the running
mu^2 after it. So a line that is changed, removed or put in between does not go with the next, and
what all of them come to, the balance, follows from the lines alone, one after the other. It knows
only the last `RUNS` runs; one that it has forgotten would begin, and be charged, anew.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple, Self, get_args

from fedsofim.core.errors import require
from fedsofim.core.sums import Adjacency
from fedsofim.privacy.accounting import LARGEST_DELTA, GaussianEvent, mu_of

# How many runs an account knows by name, and an owner keeps files of.
RUNS = 32
# A release with a mu below this counts as free: ten thousand of them come to a mu of 0.001.
FREE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What an owner allows about one of its records, over all runs together.

    Attributes:
        epsilon: the limit; `inf` allows anything.
        delta: the probability with which the promise may fail.
        adjacency: what may change about a record; the owner's choice, whatever a run assumes.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        require(self.epsilon > 0, f"epsilon={self.epsilon}: must be > 0 (inf allows anything)")
        within = 0 < self.delta < LARGEST_DELTA
        require(within, f"delta={self.delta}: must be between 0 and {LARGEST_DELTA}")
        _check_adjacency(self.adjacency)

    def covers(self, mu2: float) -> bool:
        """Whether this much, of mu^2, is within the budget."""
        if math.isinf(self.epsilon):
            return not math.isnan(mu2)
        # Calibration aims at the budget itself, so adding up R charges must not fail by rounding.
        return math.sqrt(mu2) <= _most(self.epsilon, self.delta) * (1 + 1e-10)


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What was released: for which run and round, on what terms, and the event.

    Attributes:
        run: the run's name.
        round: the round, as the server calls it.
        terms: a digest of all that decides what the client computes and is charged in this run.
        adjacency: what may change about a record, for this sensitivity.
        sensitivity: how far that moves what is released.
        std: of the noise.
        count: how many such releases this one is worth.
    """

    run: str
    round: int
    terms: str
    adjacency: Adjacency
    sensitivity: float
    std: float
    count: float

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)

    def event(self, adjacency: Adjacency) -> GaussianEvent:
        """What was done to a record, at most, by this notion of neighbours.

        Replacing a record is removing one and adding one. A charge for replacing also covers
        adding or removing, and counts as it is.
        """
        twice = self.adjacency == "add-remove" and adjacency == "replace-one"
        return GaussianEvent(self.sensitivity * (2 if twice else 1), self.std, self.count)

    def spent(self) -> "Spent":
        """What this charge alone comes to."""
        return Spent(*(mu2_of(self.event(adjacency)) for adjacency in get_args(Adjacency)))


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Whose account it is and what its owner allows: the first line, and one for each new budget.

    Attributes:
        data: the digest of the records.
        budget: what is allowed from here on.
    """

    data: str
    budget: Budget


Entry = Charge | Opening


class Spent(NamedTuple):
    """mu^2 by each notion of neighbours, so that an owner may choose the other one later."""

    replace_one: float = 0.0
    add_remove: float = 0.0

    def by(self, adjacency: Adjacency) -> float:
        """By this notion."""
        return self.replace_one if adjacency == "replace-one" else self.add_remove

    def plus(self, more: "Spent") -> "Spent":
        """Both together."""
        return Spent(*map(add, self, more))


def mu2_of(event: GaussianEvent) -> float:
    """What an event adds to mu^2."""
    mu = event.mu
    require(mu >= 0, "a release without a cost that can be counted")
    return max(mu * mu, math.ulp(0.0)) if mu else 0.0


def add(mu2: float, more: float) -> float:
    """A sum of mu^2, rounded upwards: no number of charges adds up to less than it is."""
    return math.nextafter(mu2 + more, math.inf) if more else mu2


class Account(NamedTuple):
    """What one run has been charged for.

    Attributes:
        made: how many releases in rounds.
        charged: what they were worth.
        stages: which stages were charged, of those before the first round, as -1, -2, ...
        terms: the digest of the run's terms; empty before its first charge.
        spent: on all of it.
    """

    made: int = 0
    charged: float = 0.0
    stages: tuple[int, ...] = ()
    terms: str = ""
    spent: Spent = Spent()

    def plus(self, charge: Charge, cost: Spent) -> "Account":
        """After another charge."""
        known = self._replace(terms=self.terms or charge.terms, spent=self.spent.plus(cost))
        if charge.round < 0:
            return known._replace(stages=tuple(sorted({*self.stages, charge.round})))
        return known._replace(made=self.made + 1, charged=self.charged + charge.count)


class Day(NamedTuple):
    """What was spent and released on one day (UTC), and how many releases cost next to nothing."""

    date: str = ""
    spent: Spent = Spent()
    releases: int = 0
    free: int = 0

    def at(self, time: str) -> "Day":
        """The day of this time; a clock that is put back does not begin another one."""
        return Day(time[:10]) if time[:10] > self.date else self

    def plus(self, cost: Spent) -> "Day":
        """After another charge, which cost this."""
        free = self.free + (cost.replace_one < FREE**2)
        return Day(self.date, self.spent.plus(cost), self.releases + 1, free)


class Balance(NamedTuple):
    """What the lines so far come to.

    Attributes:
        lines: how many there are.
        last: the hash of the last one.
        start: where the last one begins, in bytes.
        size: where it ends.
        data: the digest of the records.
        budget: what is allowed.
        spent: by all charges.
        day: the day of the last charge.
        runs: the runs that were charged last, the latest at the end.
    """

    lines: int = 0
    last: str = ""
    start: int = 0
    size: int = 0
    data: str = ""
    budget: Budget | None = None
    spent: Spent = Spent()
    day: Day = Day()
    runs: Mapping[str, Account] = {}

    def line(self, entry: Entry, time: str) -> bytes:
        """The next line."""
        kind, after = type(entry).__name__.lower(), self._plus(entry, time)
        said = {"line": self.lines + 1, "time": time, kind: asdict(entry)}
        said |= {"mu2": after.spent._asdict(), "before": self.last}
        return json.dumps(said).encode() + b"\n"

    def after(self, raw: bytes) -> "Balance":
        """The balance after another line.

        Raises:
            ValueError: if the line does not follow from those before; it says what is wrong.
        """
        number = self.lines + 1
        try:
            said = json.loads(raw)
            there, before, time, mu2 = (said[k] for k in ("line", "before", "time", "mu2"))
            then = self._plus(entry_of(said), time)
        except Exception as error:
            raise ValueError(f"line {number} is damaged ({error})") from None
        require(there == number, f"line {number} is missing, line {there} is in its place")
        require(before == self.last, f"line {self.lines} was changed after it was written")
        require(mu2 == then.spent._asdict(), f"line {number} was changed: it does not add up")
        return then._replace(
            lines=number,
            last=hashlib.sha256(raw).hexdigest(),
            start=self.size,
            size=self.size + len(raw),
        )

    def _plus(self, entry: Entry, time: str) -> Self:
        if isinstance(entry, Opening):
            same = self.data in ("", entry.data)
            require(same, "it says that the account is of other records")
            return self._replace(data=entry.data, budget=entry.budget)
        require(self.lines > 0, "the account was not opened")
        runs, cost = dict(self.runs), entry.spent()
        runs[entry.run] = runs.pop(entry.run, Account()).plus(entry, cost)
        if len(runs) > RUNS:
            runs.pop(next(iter(runs)))
        day = self.day.at(time).plus(cost)
        return self._replace(spent=self.spent.plus(cost), day=day, runs=runs)

    def values(self) -> dict[str, Any]:
        """All of it, in what JSON has."""
        runs = {k: v._asdict() | {"spent": v.spent._asdict()} for k, v in self.runs.items()}
        day = self.day._asdict() | {"spent": self.day.spent._asdict()}
        budget = None if self.budget is None else asdict(self.budget)
        said = {"spent": self.spent._asdict(), "day": day, "budget": budget, "runs": runs}
        return self._asdict() | said


def balance_of(values: Mapping[str, Any]) -> Balance:
    """The balance that has these values."""
    runs = {
        name: Account(**v | {"spent": Spent(**v["spent"]), "stages": tuple(v["stages"])})
        for name, v in values["runs"].items()
    }
    day = Day(**values["day"] | {"spent": Spent(**values["day"]["spent"])})
    budget = None if values["budget"] is None else Budget(**values["budget"])
    said = {"spent": Spent(**values["spent"]), "day": day, "budget": budget, "runs": runs}
    return Balance(**{**values, **said})


_most = cache(mu_of)


def entry_of(said: Mapping[str, Any]) -> Entry:
    """What a line says."""
    if "charge" in said:
        return Charge(**said["charge"])
    opening = said["opening"]
    return Opening(data=opening["data"], budget=Budget(**opening["budget"]))


def _check_adjacency(adjacency: str) -> None:
    known = get_args(Adjacency)
    require(adjacency in known, f"adjacency={adjacency}: choose one of {', '.join(known)}")
