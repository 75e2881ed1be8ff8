"""The rules of an owner beside its budget: what it computes, for whom, how much and how often.

A server chooses a run's config, and whatever it says, a client must not work for hours, fill its
memory or its disk. Sizes and counts are looked at before anything is made of them. Each refusal
names its rule.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsofim.core.errors import require
from fedsofim.privacy.book import Budget, Day
from fedsofim.privacy.plan import Plan
from fedsofim.privacy.refusals import Refusal, RefusedError

# Who takes part is drawn for all rounds at once, which takes time by their product.
SCHEDULE = 10**7
# Nothing is learned through more noise than this, and the exact mechanism has no more.
MOST_NOISE = 1e6

EXAMPLE = """\
# What this client takes part in, beside its budget. Every line may be left out.
clip = 1000.0                  # largest clip, in runs with noise
noise_multiplier = 0.0         # least noise on a sum, over the clip; 0: the budget decides
strategies = []                # such as ["sofim", "fedgd"]; none named: all
transforms = ["none", "kfc", "private", "centre", "public"]  # none named: all
epsilon_per_run = inf          # most that one run may spend
epsilon_per_day = inf          # most that all runs may spend in a day (UTC)
rounds = 10_000                # most rounds of a run
local_steps = 1_000            # most steps between two rounds
clients = 10_000               # most clients of a run
message_bytes = 67_108_864     # largest message
job_bytes = 65_536             # largest config of a run
honest = 0                     # other clients, of those with pinned keys, that surely are honest:
                               # with trust=aggregate only so many others' noise counts; 0: none's
releases_per_day = 10_000      # most releases in a day
free_releases_per_day = 1_000  # most of them that cost next to nothing: they still fill the disk
"""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What an owner takes part in; `EXAMPLE` says what each rule is about."""

    clip: float = 1000.0
    noise_multiplier: float = 0.0
    strategies: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ("none", "kfc", "private", "centre", "public")
    epsilon_per_run: float = math.inf
    epsilon_per_day: float = math.inf
    rounds: int = 10_000
    local_steps: int = 1_000
    clients: int = 10_000
    message_bytes: int = 2**26
    job_bytes: int = 2**16
    releases_per_day: int = 10_000
    free_releases_per_day: int = 1_000
    honest: int = 0

    def __post_init__(self) -> None:
        for name in ("strategies", "transforms"):
            given = getattr(self, name)
            good = isinstance(given, list | tuple) and all(isinstance(g, str) for g in given)
            require(good, f'{name}={given}: give a list of names, such as ["none"]')
            object.__setattr__(self, name, tuple(given))
        for name in ("clip", "epsilon_per_run", "epsilon_per_day"):
            require(getattr(self, name) > 0, f"{name}={getattr(self, name)}: must be > 0")
        z = self.noise_multiplier
        require(0 <= z < math.inf, f"noise_multiplier={z}: must be a finite number >= 0")
        for name in ("rounds", "local_steps", "clients", "message_bytes", "job_bytes"):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("releases_per_day", "free_releases_per_day", "honest"):
            require(getattr(self, name) >= 0, f"{name}={getattr(self, name)}: must be >= 0")

    def check_size(self, message: int, job: int) -> None:
        """Refuse a message before it is decoded, by its size in bytes and that of its job."""
        _most("message_bytes", message, self.message_bytes)
        _most("job_bytes", job, self.job_bytes)

    def check_job(self, values: Mapping[str, Any]) -> None:
        """Refuse a plain config before it is built: some of its numbers are lengths of loops."""
        client, partition = _section(values, "client"), _section(values, "partition")
        rounds, clients = values.get("rounds"), partition.get("clients")
        _most("rounds", rounds, self.rounds)
        _most("rounds", client.get("rounds"), self.rounds)
        _most("clients", clients, self.clients)
        if isinstance(rounds, int | float) and isinstance(clients, int | float):
            _most("rounds", rounds * clients, SCHEDULE, "rounds times clients are")
        for name in ("steps", "tune_steps"):
            _most("local_steps", client.get(name), self.local_steps)
        _one_of("strategies", _section(values, "strategy").get("name"), self.strategies)
        transform = _section(values, "transform").get("name", "none")
        _one_of("transforms", transform, self.transforms)

    def check_plan(self, plan: Plan) -> None:
        """Refuse a clip or a noise that the owner does not want."""
        z = plan.client_noise_multiplier
        if z:  # without noise a clip hides nothing, and only a budget of inf allows that
            _most("clip", plan.clip, self.clip)
        if z < self.noise_multiplier and plan.releases:
            _refuse("noise_multiplier", f"is {z:.4g}, the least is {self.noise_multiplier:g}")
        _most("noise_multiplier", z, MOST_NOISE)

    def check_run(self, budget: Budget, mu2: float) -> None:
        """Refuse what would take one run beyond its part."""
        if not _budget(budget, self.epsilon_per_run).covers(mu2):
            _refuse("epsilon_per_run", f"would be above {self.epsilon_per_run:g}")

    def check_day(self, budget: Budget, before: Day, after: Day) -> None:
        """Refuse what would take a day beyond its part."""
        if not _budget(budget, self.epsilon_per_day).covers(after.spent.by(budget.adjacency)):
            _refuse("epsilon_per_day", f"would be above {self.epsilon_per_day:g}")
        _most("releases_per_day", after.releases, self.releases_per_day)
        if after.free > before.free:
            _most("free_releases_per_day", after.free, self.free_releases_per_day)


def _budget(budget: Budget, epsilon: float) -> Budget:
    return Budget(epsilon=epsilon, delta=budget.delta, adjacency=budget.adjacency)


def _section(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = values.get(key, {})
    require(isinstance(section, Mapping), f"{key}: must be a group of keys")
    return dict(section)


def _most(rule: str, value: object, most: float, what: str = "is") -> None:
    """Refuse a number above the most; what is not a number is refused elsewhere."""
    if isinstance(value, int | float) and not value <= most:
        shown = min(value, 1e300)  # a whole number may be beyond what a float holds
        _refuse(rule, f"{what} {shown:.6g}, the most is {most:.6g}")


def _one_of(rule: str, value: object, names: tuple[str, ...]) -> None:
    if names and value not in names:
        _refuse(rule, f"has no {value!r}, only {', '.join(names)}")


def _refuse(rule: str, why: str) -> None:
    raise RefusedError(f"policy: {rule} {why}", Refusal.POLICY, rule)
