"""Everything that decides a run, checked: a config's parts and how they go together."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fedsofim.clients import Program
from fedsofim.clients.program import Noise
from fedsofim.config.build import build, settings_of
from fedsofim.config.checks import check
from fedsofim.config.parts import GROUPS, find
from fedsofim.config.secagg import SecAgg
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.participation import Schedule
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.features import Extraction
from fedsofim.data.own import Data
from fedsofim.data.partition import Division
from fedsofim.data.recipe import BackboneConfig, FeaturesConfig
from fedsofim.data.sizes import client_count
from fedsofim.models.kinds import Head, Model
from fedsofim.models.metrics import Metric
from fedsofim.privacy.exact import ExactNoise
from fedsofim.privacy.mechanism import seeded
from fedsofim.privacy.plan import Plan, Privacy
from fedsofim.privacy.sharing import Sharing
from fedsofim.strategies import Rule
from fedsofim.strategies.aggregation import Aggregation
from fedsofim.strategies.average import Average
from fedsofim.strategies.ridge import Joint
from fedsofim.strategies.stage import Stage
from fedsofim.transforms.kfc import Transform


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What carries arrays between server and clients; it changes speed, never results.

    Attributes:
        name: `local`, one process; `ray`, Flower's simulation on Ray; `flower`, whatever
            `flwr run` was pointed at, a simulation or a deployment.
        cpus: CPUs that one Ray process takes.
        processes: how many Ray processes there are at most; by default what the CPUs allow.
        nodes: among how many of Flower's virtual nodes Ray's clients are dealt out; by default
            one for each process.
        address: a running Ray cluster's, instead of starting Ray here.
        wait: seconds to wait for enough clients before giving up.
        timeout: seconds to wait for a client's reply.
        at_once: how many clients are asked at the same time; by default all of a round.
        min_clients: how many good replies make a round; by default all clients'.
        on_missing: what to do about a round with fewer: `repeat` asks the missing ones again,
            and the run stops when that does not help; `skip` goes on to the next round without a
            step, and what was released stays charged.
        max_repeats: how often the missing clients of one round are asked again.
        max_records: the most records that an owner is believed to have. With `aggregation=size` it
            bounds what one lie about a size is worth.
        max_features: the most features that an owner is believed to have.
    """

    name: Literal["local", "ray", "flower"] = "local"
    cpus: float = 1
    processes: int | None = None
    nodes: int | None = None
    address: str | None = None
    wait: float = 300
    timeout: float = 300
    at_once: int | None = None
    min_clients: int | None = None
    on_missing: Literal["repeat", "skip"] = "repeat"
    max_repeats: int = 3
    max_records: int = 10_000_000
    max_features: int = 100_000

    def __post_init__(self) -> None:
        for name in ("cpus", "wait", "timeout"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name}={value}: must be a finite number > 0")
        for name in ("processes", "nodes", "min_clients", "max_records", "max_features", "at_once"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name}={value}: must be at least 1")
        require(self.max_repeats >= 0, f"max_repeats={self.max_repeats}: must be >= 0")


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where a run is written, and how often its state is saved.

    Attributes:
        dir: the run's own directory; by default `root`/<date>/<name>.
        root: where runs without a directory of their own go.
        checkpoint_every: rounds between checkpoints.
        counts: whether a simulation draws each client's exact class counts, in the report and in
            `partition.svg` and `.csv`. No epsilon covers them.
        theory: whether a simulation measures the quantities of the paper's theorems in every round,
            in `theory.jsonl` and `theory.json`. It reads records without clip and noise: not
            private, and refused in a deployment.
    """

    dir: str | None = None
    root: str = "outputs"
    checkpoint_every: int = 10
    counts: bool = False
    theory: bool = False

    def __post_init__(self) -> None:
        require(
            self.checkpoint_every >= 1,
            f"checkpoint_every={self.checkpoint_every}: must be at least 1",
        )


@dataclass(frozen=True, kw_only=True)
class Config:
    r"""Everything that decides a run; `text` is all of it in JSON, as other machines are sent it.

    Attributes:
        rounds: how many rounds, T.
        seed: of all random numbers of a simulation: division, first parameters, noise.
        participation: the fraction of the clients in a round, drawn anew each round.
        aggregation: `uniform`, the mean of the clients' means, as in the paper; `size` weighs them
            by their public sizes; `median`, `trimmed` and `krum` bear malicious clients.
        malicious_fraction: of a round's clients, which `trimmed` and `krum` bear.
        start: where training begins: as the model does (`none`), or with a head from noisy moments
            of mapped records, as `strategy=ridge` makes it (`ridge`).
        start_share: the part of $\mu^2$ that this head spends.
        average: what is evaluated and written: the last iterate (`none`), the mean of those of the
            last quarter of the rounds (`tail`), or an exponential average (`ema`).
        track: who else is told of the run: tensorboard, mlflow, wandb or package.module:Tracker,
            separated by commas.
        note: how its settings were chosen, for people.
    """

    dataset: DatasetConfig | Data
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    partition: Division
    client: Program
    strategy_name: str
    strategy: Rule
    privacy: Privacy
    engine: Engine
    output: Output
    rounds: int
    seed: int
    aggregation: Aggregation
    model: Model = field(default_factory=Head)
    transform: Transform = field(default_factory=Transform)
    metric: Metric = field(default_factory=Metric)
    participation: float = 1.0
    malicious_fraction: float = 0.1
    start: Literal["none", "ridge"] = "none"
    start_share: float = 0.1
    average: Average = "none"
    secagg: SecAgg = field(default_factory=SecAgg)
    track: str | None = None
    note: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"rounds={self.rounds}: must be at least 1")
        require(self.rounds <= MOST_ROUNDS, f"rounds={self.rounds}: at most {MOST_ROUNDS:,}")
        require(self.seed >= 0, f"seed={self.seed}: must be >= 0")
        check(self)

    @cached_property
    def schedule(self) -> Schedule:
        """Who takes part in which round."""
        return Schedule(
            clients=self.partition.clients,
            fraction=self.participation,
            seed=self.seed,
            rounds=self.rounds,
        )

    def noise(self, t: int) -> Noise:
        """The noise of the clients of a simulation in round `t`; negative before the first."""
        if self.privacy.noise == "exact":
            return lambda client, draw: ExactNoise()
        return seeded(self.seed, t)

    @property
    def private(self) -> bool:
        """Whether the run promises anything."""
        return math.isfinite(self.epsilon())

    @property
    def name(self) -> str:
        """A short name that tells runs apart."""
        budget = "not-private"
        if self.cost(self.rounds) == 0 and not self.stages:
            budget = "nothing-sent"
        elif self.private:
            z = self.privacy.noise_multiplier
            budget = f"eps{self.privacy.epsilon:g}" if z is None else f"z{z:g}"
        parts = [self.transform.name] if self.transform.name != "none" else []
        parts += [self.model.name] if not self.model.linear else []
        strategy = self.strategy_name.rpartition(":")[2]  # of package.module:MyRule, MyRule
        return "-".join([*parts, strategy, self.dataset.name, budget, f"seed{self.seed}"])

    @property
    def extraction(self) -> Extraction:
        """Where the features come from."""
        made = self.dataset
        if isinstance(made, Data):
            raise ConfigError(f"dataset={made.name}: is made by code, and needs no features")
        return Extraction(dataset=made, backbone=self.backbone, features=self.features)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """What is released before the first round, in this order."""
        head = (Joint(share=self.start_share),) if self.start == "ridge" else ()
        return (*self.transform.stages, *head, *self.strategy.stages)

    @cached_property
    def sharing(self) -> Sharing | None:
        """On what clients agree who share their noise; `None` where each adds its own."""
        if self.privacy.trust == "server":
            return None
        return self.secagg.shared(self.schedule.size, self.engine.min_clients)

    def plan(self) -> Plan:
        """The noise that keeps the budget over the whole run."""
        releases, sharing = self.cost(self.rounds), self.sharing
        try:
            return self.privacy.plan(
                releases=releases,
                clients=sharing.sharers if sharing else 1,
                aggregation=self.aggregation,
                shares=tuple(stage.share for stage in self.stages),
            )
        except ConfigError as error:
            raise ConfigError(f"privacy.{error}") from None

    def cost(self, rounds: int) -> float:
        """How many releases the first `rounds` rounds are worth to a record of any client."""
        return self.client.disclosure.releases(self.schedule.busiest(rounds))

    def epsilon(self, rounds: int | None = None) -> float:
        """The epsilon spent after `rounds` rounds, after all by default; `inf` for no promise."""
        if self.transform.source == "private":
            return math.inf
        return self.plan().epsilon(self.cost(self.rounds if rounds is None else rounds))


# The sections that are always of one kind.
KINDS: dict[str, type[Any]] = {
    "backbone": BackboneConfig,
    "features": FeaturesConfig,
    "privacy": Privacy,
    "engine": Engine,
    "output": Output,
    "secagg": SecAgg,
}
MOST_ROUNDS = 10_000_000
OPTIONAL = ("model", "transform", "metric", "secagg")  # a config may be older than the choice


def kinds_of(values: Mapping[str, Any]) -> dict[str, type[Any]]:
    """The class of each part of a plain config, as Hydra composes it."""
    for key in (name for name in (*KINDS, *GROUPS) if name not in OPTIONAL):
        require(isinstance(values.get(key), Mapping), f"{key}: a value is missing")
    chosen = {group: values[group] for group in GROUPS if group in values}
    kinds = {key: kind for key, kind in KINDS.items() if key in values}
    return kinds | {g: find(g, part.get(GROUPS[g].key)) for g, part in chosen.items()}


def parse(values: Mapping[str, Any]) -> Config:
    """Check a plain config, and give it types."""
    kinds, typed = kinds_of(values), dict(values)
    weights = values["backbone"].get("weights")
    require(weights != "???", "backbone.weights: a value is missing; name a file, or random")
    for group, kind in kinds.items():
        key = GROUPS[group].key if group in GROUPS else ""
        if key not in settings_of(kind):  # else the name is one of its settings
            typed[group] = {k: v for k, v in values[group].items() if k != key}
    typed["dataset"] = build(kinds.pop("dataset"), typed["dataset"], "dataset")
    found = client_count(typed["partition"], typed["dataset"])
    typed["partition"] = {**typed["partition"], **({"clients": found} if found else {})}
    for key, kind in kinds.items():
        typed[key] = build(kind, typed[key], key)
    derived = {"strategy_name": values["strategy"]["name"], "text": json.dumps(values)}
    config = build(Config, {**typed, **derived}, "")
    config.plan()  # refuses what cannot be protected, before any data is read
    return config
