"""An owner's account of what was released about its records: a file that only grows.

Every release is charged before it is sent, and a release that the budget does not cover is
refused, whoever asks. One line is one charge, in JSON; a line that was cut short by a crash was
never followed by a release, so it does not count. Any other damage closes the account: what can't
be read can't be trusted to be complete.
"""

import fcntl
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import sync_folder
from fedsofim.privacy.accounting import GaussianEvent, compose, epsilon_of, mu_of
from fedsofim.privacy.mechanism import Adjacency


class RefusedError(ConfigError):
    """A release that the owner's budget does not cover."""


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
        require(0 < self.delta < 1, f"delta={self.delta}: must be between 0 and 1")
        _check_adjacency(self.adjacency)

    def covers(self, events: Sequence[GaussianEvent]) -> bool:
        """Whether all these events together are within the budget."""
        mu = compose(events)
        if math.isinf(self.epsilon):
            return True
        # Calibration aims at the budget itself, so adding up R charges must not fail by rounding.
        return mu <= mu_of(self.epsilon, self.delta) * (1 + 1e-10)


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One line of the account: for which run and round, on what terms, and the event.

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


class Ledger:
    """The account in one file."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path, self.budget = path, budget

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out: two releases must not spend the same budget."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.path.with_suffix(".lock"), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def charges(self) -> list[Charge]:
        """Everything charged so far."""
        charges = []
        for number, line in enumerate(self._lines(), 1):
            try:
                charges.append(Charge(**json.loads(line)))
                require(self._event(charges[-1]).mu >= 0, "not a charge")
            except (ValueError, TypeError) as error:
                raise RefusedError(f"{self.path}: line {number} is damaged ({error})") from None
        return charges

    def epsilon(self) -> float:
        """The epsilon spent so far, at the budget's delta."""
        return epsilon_of(compose(map(self._event, self.charges())), self.budget.delta)

    def check(self, events: Sequence[GaussianEvent]) -> None:
        """Refuse unless the budget covers these events after all that was charged."""
        if any(math.isnan(event.mu) for event in events):
            raise RefusedError("a release without a cost that can be counted")
        past = [self._event(charge) for charge in self.charges()]
        if self.budget.covers([*past, *events]):
            return
        spent = epsilon_of(compose(past), self.budget.delta)
        then = epsilon_of(compose([*past, *events]), self.budget.delta)
        raise RefusedError(
            f"the owner's budget is epsilon {self.budget.epsilon:g} at delta "
            f"{self.budget.delta:g} ({self.budget.adjacency}); {spent:.4g} is spent, "
            f"and this would make it {then:.4g}"
        )

    def charge(self, charge: Charge) -> None:
        """Write a charge to disk, or refuse it; returns only when it would survive a crash."""
        self.check([self._event(charge)])
        new = not self.path.exists()
        whole = sum(len(line) + 1 for line in self._lines())
        with open(self.path, "ab") as file:
            file.truncate(whole)  # what a crash cut short
            file.write(json.dumps(asdict(charge)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.path.parent)

    def _event(self, charge: Charge) -> GaussianEvent:
        """What a charge did to a record, by the budget's notion of neighbours."""
        return charge.event(self.budget.adjacency)

    def _lines(self) -> list[bytes]:
        """The whole lines of the file."""
        if not self.path.exists():
            return []
        return self.path.read_bytes().split(b"\n")[:-1]


def _check_adjacency(adjacency: str) -> None:
    known = get_args(Adjacency)
    require(adjacency in known, f"adjacency={adjacency}: choose one of {', '.join(known)}")
