"""What a run has really released, and on what terms: what its promise is computed from.

A config is a plan, and can be edited. The record is kept with the state, grows with every round,
and is never computed anew from a config.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedsofim.config.schema import Config
from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.privacy.accounting import GaussianEvent, compose, epsilon_of, mu_of
from fedsofim.privacy.mechanism import sensitivity
from fedsofim.privacy.plan import Plan

# What changes speed or place and never a result, so that a run may go on with another.
FREE = (
    *("engine.", "output.", "track", "features.cache", "features.batch", "features.device"),
    *("dataset.path", "dataset.root", "dataset.download"),  # the content's hash is checked
)
# The start of what was released in rounds that a crash lost, and that are released anew.
LOST = -(2**31)
# Less than this part of a budget, of mu^2, is rounding: nothing is left.
LEAST = 1e-6


class Released(NamedTuple):
    """What was released about any one record, a row for each noise that was used, all `(E,)`.

    Attributes:
        start: how many rounds were done when this noise came into use; a stage before the first is
            -1, -2, ..., and `LOST` stands for rounds that a crash lost.
        sensitivity: how far one record moves what was released.
        std: of the noise on it.
        times: how many such releases there were.
    """

    start: Array
    sensitivity: Array
    std: Array
    times: Array

    @classmethod
    def blank(cls, rows: int = 0) -> "Released":
        """So many rows of zeros."""
        return cls(np.zeros(rows, np.int64), *(np.zeros(rows) for _ in range(3)))

    def charged(self, start: int, event: GaussianEvent) -> "Released":
        """With the row that began at `start` replaced, or added; a count never falls.

        >>> once = Released.blank().charged(0, GaussianEvent(2.0, 4.0, 1))
        >>> again = once.charged(0, GaussianEvent(2.0, 4.0, 3)).charged(0, GaussianEvent(2.0, 4.0))
        >>> again.events()
        [GaussianEvent(sensitivity=2.0, std=4.0, count=3.0)]
        """
        same = self.start == start
        if not same.any():
            if event.count == 0:
                return self
            row = (start, event.sensitivity, event.std, event.count)
            return Released(*(np.append(a, x) for a, x in zip(self, row, strict=True)))
        return self._replace(times=np.where(same, np.maximum(self.times, event.count), self.times))

    def events(self) -> list[GaussianEvent]:
        """All of it, for the accountant."""
        columns = (self.sensitivity.tolist(), self.std.tolist(), self.times.tolist())
        return [GaussianEvent(*row) for row in zip(*columns, strict=True)]

    @property
    def rounds(self) -> float:
        """The releases made in rounds, without the stages before the first and lost ones."""
        return float(self.times[self.start >= 0].sum())

    def mu(self) -> float:
        """The GDP parameter of all releases together."""
        return compose(self.events())

    def epsilon(self, delta: float) -> float:
        """What they are worth at this delta."""
        return epsilon_of(self.mu(), delta)


class Record(NamedTuple):
    """What belongs to a run's state besides its arrays.

    Attributes:
        released: what really happened.
        start: how many rounds were done when the noise of now came into use.
        noise_multiplier: the noise of now, over the clip.
        terms: all that decides privacy and results, as JSON.
    """

    released: Released = Released.blank()
    start: int = 0
    noise_multiplier: float = 0.0
    terms: str = "{}"

    def after(self, config: Config, plan: Plan, t: int, told: float = 0.0) -> "Record":
        """The record after round `t`; a negative one is before the stage of that number.

        Args:
            config: of the run.
            plan: the clip and the noise that were used.
            t: rounds done.
            told: the most that a client says it has charged itself, where clients keep ledgers.
        """
        released = self.released
        if self.start == 0:
            stages = plan.stage_events()
            for number in range(-len(stages), min(t, 0)):
                released = released.charged(number, stages[number])
        t = max(t, 0)
        told -= float(released.times[(released.start >= 0) & (released.start < self.start)].sum())
        count = max(cost(config, self.start, t), told)
        bound = sensitivity(plan.clip, plan.adjacency)
        event = GaussianEvent(bound, plan.noise_std, count)
        return self._replace(released=released.charged(self.start, event))

    def repeating(self, config: Config, plan: Plan, seen: int) -> "Record":
        """The record if rounds up to `seen`, which a crash lost, are released anew.

        Seeded noise makes the same releases again. Other noise does not, so both are charged.
        """
        if config.privacy.noise == "seeded":
            return self
        before, after = self.released.mu(), self.after(config, plan, seen).released.mu()
        if not before < after:
            return self
        lost = math.sqrt(after**2 - before**2)  # the GDP parameter of what was lost
        columns = zip(self.released, (LOST, lost, 1.0, 1.0), strict=True)
        return self._replace(released=Released(*(np.append(a, x) for a, x in columns)))

    def epsilon(self, config: Config, plan: Plan, rounds: int | None = None) -> float:
        """The epsilon spent; with `rounds`, what it will be after so many with the noise of now."""
        if config.transform.source == "private":
            return math.inf
        then = self if rounds is None else self.after(config, plan, rounds)
        return then.released.epsilon(plan.delta)


def cost(config: Config, since: int, t: int) -> float:
    """How many releases rounds `since` to `t` are worth to a record of any client."""
    busy = config.schedule.busiest(t, since)
    releases = config.client.disclosure.releases
    return releases(since + busy) - releases(since)


def opened(config: Config, plan: Plan) -> Record:
    """The record of a run before its first round."""
    terms = terms_of(json.loads(config.text or "{}"))
    return Record(noise_multiplier=plan.noise_multiplier, terms=terms)


def terms_of(values: Mapping[str, Any]) -> str:
    """All values of a plain config that decide privacy or results, as JSON by dotted name."""
    kept = {key: value for key, value in dotted(values) if not key.startswith(FREE)}
    return json.dumps(kept, sort_keys=True)


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings, by dotted name.

    >>> dict(dotted({"strategy": {"lr": 1}, "rounds": 2}))
    {'strategy.lr': 1, 'rounds': 2}
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def require_terms(values: Mapping[str, Any], terms: str, where: str) -> None:
    """Refuse a config that is not the one that the run was begun with, and say what differs."""
    now, then = json.loads(terms_of(values)), json.loads(terms)
    keys = [key for key in {**then, **now} if now.get(key) != then.get(key)]
    differing = ", ".join(f"{k}={now.get(k)} (begun with {then.get(k)})" for k in keys)
    require(
        not keys,
        f"{where}: was edited: {differing}; what was released cannot be changed afterwards. "
        "Put it back, or extend the run: fedsofim resume DIR rounds=...",
    )


def noise_for_the_rest(config: Config, record: Record, t: int) -> float:
    r"""The least noise multiplier that keeps the budget from round `t` on.

    What is left of the budget is $\mu^2 - \mu_\text{spent}^2$, and the remaining releases share it.
    That the choice may depend on what was released before costs nothing: Gaussian releases compose
    in this way even if each is chosen after seeing the others, as long as the sum of all $\mu_j^2$
    stays within a budget that was set (Smith & Thakurta 2022).
    """
    privacy, rounds = config.privacy, config.rounds
    releases = config.client.disclosure.releases
    require(
        math.isclose(releases(rounds), rounds * releases(1)),
        f"rounds={rounds}: the noise of strategy={config.strategy_name} spans rounds, so a run "
        "cannot be extended; start a new one",
    )
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    if math.isinf(privacy.epsilon):
        return 0.0
    budget, spent = mu_of(privacy.epsilon, privacy.delta) ** 2, record.released.mu() ** 2
    left, over = budget - spent, t == rounds
    require(
        left >= -LEAST * budget if over else left > LEAST * budget,
        f"privacy.epsilon={privacy.epsilon:g}: nothing is left of it after {t} rounds, which spent "
        f"{epsilon_of(math.sqrt(spent), privacy.delta):.4g}; give a larger one",
    )
    if over:
        return record.noise_multiplier
    unit = sensitivity(1.0, privacy.adjacency)
    return math.sqrt(cost(config, t, rounds)) * unit / math.sqrt(left)
