"""Everything that decides a run, checked: a config's parts and how they go together."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedsofim.clients import CLIENTS, Program
from fedsofim.config.build import build
from fedsofim.core.errors import ConfigError, choose, require
from fedsofim.core.participation import Schedule
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.features import Extraction
from fedsofim.data.partition import Partition
from fedsofim.data.recipe import BackboneConfig, FeaturesConfig
from fedsofim.models.kinds import MODELS, Head, Model
from fedsofim.privacy.plan import Aggregation, Plan, Privacy
from fedsofim.strategies import STRATEGIES, Rule
from fedsofim.strategies.rule import start
from fedsofim.transforms.kfc import TRANSFORMS, Oracle, Transform


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
        timeout: seconds to wait for the replies of a round.
        min_clients: how many good replies make a round; by default all clients'.
        on_missing: what to do about a round with fewer: `repeat` asks the missing ones again,
            and the run stops when that does not help; `skip` goes on to the next round without a
            step, and what was released stays charged.
        max_repeats: how often the missing clients of one round are asked again.
    """

    name: Literal["local", "ray", "flower"] = "local"
    cpus: float = 1
    processes: int | None = None
    nodes: int | None = None
    address: str | None = None
    wait: float = 300
    timeout: float = 300
    min_clients: int | None = None
    on_missing: Literal["repeat", "skip"] = "repeat"
    max_repeats: int = 3

    def __post_init__(self) -> None:
        for name in ("cpus", "wait", "timeout"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name}={value}: must be a finite number > 0")
        for name in ("processes", "nodes", "min_clients"):
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
    """

    dir: str | None = None
    root: str = "outputs"
    checkpoint_every: int = 10
    counts: bool = False

    def __post_init__(self) -> None:
        require(
            self.checkpoint_every >= 1,
            f"checkpoint_every={self.checkpoint_every}: must be at least 1",
        )


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides a run; `text` is all of it in JSON, as other machines are sent it.

    Attributes:
        rounds: how many rounds, T.
        seed: of all random numbers of a simulation: division, first parameters, noise.
        participation: the fraction of the clients in a round, drawn anew each round.
        aggregation: `uniform`, the mean of the clients' means, as in the paper; `size` weighs them
            by their public sizes.
    """

    dataset: DatasetConfig
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    partition: Partition
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
    participation: float = 1.0
    text: str = ""

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"rounds={self.rounds}: must be at least 1")
        require(self.seed >= 0, f"seed={self.seed}: must be >= 0")
        n, least = self.schedule.size, self.engine.min_clients
        require(
            least is None or least <= n,
            f"engine.min_clients={least}: a round has only {n} clients",
        )
        require(
            self.privacy.trust == "server" or least in (None, n),
            f"engine.min_clients={least}: with trust=aggregate the sum of fewer than all clients "
            "carries too little noise",
        )
        require(
            not self.client.every_round
            or (least in (None, n) and self.engine.on_missing != "skip"),
            f"engine.min_clients, engine.on_missing=skip: the clients of "
            f"strategy={self.strategy_name} must take part in every round",
        )
        require(
            self.schedule.size == self.partition.clients or not self.client.every_round,
            f"participation={self.participation}: the clients of strategy={self.strategy_name} "
            "must take part in every round",
        )
        blank = np.zeros((2, 2), np.float32)
        sent = self.strategy.broadcast(start(self.strategy, blank))
        expects = self.strategy.release_shape(blank) != (0,)
        require(
            self.client.needs <= sent.keys()
            and self.client.setup_kind == self.strategy.setup_kind
            and self.client.sends == expects,
            f"client={type(self.client).__name__}: does not go with strategy={self.strategy_name}",
        )
        require(
            self.privacy.trust == "server" or self.client.shares_noise,
            "privacy.trust=aggregate: this client acts on its own releases before they are summed, "
            "which the shared noise does not hide; use trust=server",
        )
        require(
            self.privacy.adjacency == "replace-one" or not self.client.record_moves_others,
            "privacy.adjacency=add-remove: adding a record would change which records take turns "
            "together; use replace-one, or client.batches=1",
        )
        require(
            not (self.client.uses_part and self.private),
            "client.batch_size: a step is charged to all records of a client, so with a budget it "
            "uses them all; give client.batch_size=null, or privacy=none",
        )
        require(
            self.model.linear or (self.client.setup_kind is None and not self.client.keeps_models),
            f"strategy={self.strategy_name}: reads features, and so needs model=head",
        )
        z, oracle = self.privacy.noise_multiplier, self.transform
        noisy = z != 0 if z is not None else math.isfinite(self.privacy.epsilon)
        require(
            not (isinstance(oracle, Oracle) and noisy) or oracle.i_know_this_is_not_private,
            "transform=oracle: reads private records, which no noise then hides; use privacy=none, "
            "or say transform.i_know_this_is_not_private=true",
        )

    @cached_property
    def schedule(self) -> Schedule:
        """Who takes part in which round."""
        return Schedule(
            clients=self.partition.clients,
            fraction=self.participation,
            seed=self.seed,
            rounds=self.rounds,
        )

    @property
    def private(self) -> bool:
        """Whether the run promises anything."""
        return math.isfinite(self.epsilon())

    @property
    def name(self) -> str:
        """A short name that tells runs apart."""
        budget = "not-private"
        if self.cost(self.rounds) == 0:
            budget = "nothing-sent"
        elif self.private:
            z = self.privacy.noise_multiplier
            budget = f"eps{self.privacy.epsilon:g}" if z is None else f"z{z:g}"
        parts = [self.transform.name] if self.transform.name != "none" else []
        parts += [self.model.name] if not self.model.linear else []
        return "-".join([*parts, self.strategy_name, self.dataset.name, budget, f"seed{self.seed}"])

    @property
    def extraction(self) -> Extraction:
        """Where the features come from."""
        return Extraction(dataset=self.dataset, backbone=self.backbone, features=self.features)

    def plan(self) -> Plan:
        """The noise that keeps the budget over the whole run."""
        releases = self.cost(self.rounds)
        try:
            return self.privacy.plan(
                releases=releases,
                clients=self.schedule.size,
                aggregation=self.aggregation,
                setup_share=self.client.setup_share,
            )
        except ConfigError as error:
            raise ConfigError(f"privacy.{error}") from None

    def cost(self, rounds: int) -> float:
        """How many releases the first `rounds` rounds are worth to a record of any client."""
        return self.client.cost(self.schedule.busiest(rounds))

    def epsilon(self, rounds: int | None = None) -> float:
        """The epsilon spent after `rounds` rounds, after all by default; `inf` for no promise."""
        if self.transform.source == "private":
            return math.inf
        return self.plan().epsilon(self.cost(self.rounds if rounds is None else rounds))


KINDS: dict[str, type[Any]] = {
    "dataset": DatasetConfig,
    "backbone": BackboneConfig,
    "features": FeaturesConfig,
    "partition": Partition,
    "privacy": Privacy,
    "engine": Engine,
    "output": Output,
}
NAMED: dict[str, Mapping[str, type[Any]]] = {
    "client": CLIENTS,
    "strategy": STRATEGIES,
    "model": MODELS,
    "transform": TRANSFORMS,
}


def kinds_of(values: Mapping[str, Any]) -> dict[str, type[Any]]:
    """The class of each part of a plain config, as Hydra composes it."""
    for key in (*KINDS, "client", "strategy"):
        require(isinstance(values.get(key), Mapping), f"{key}: a value is missing")
    return KINDS | {
        key: choose(registry, values[key].get("name"), f"{key}.name")
        for key, registry in NAMED.items()
        if key in values  # else a default: the config was written before there was a choice
    }


def parse(values: Mapping[str, Any]) -> Config:
    """Check a plain config, and give it types."""
    kinds, typed = kinds_of(values), dict(values)
    for key in NAMED.keys() & kinds.keys():
        typed[key] = {k: v for k, v in values[key].items() if k != "name"}
    typed["dataset"] = build(kinds.pop("dataset"), values["dataset"], "dataset")
    typed["partition"] = _counted(values["partition"], typed["dataset"])
    for key, kind in kinds.items():
        typed[key] = build(kind, typed[key], key)
    derived = {"strategy_name": values["strategy"]["name"], "text": json.dumps(values)}
    config = build(Config, {**typed, **derived}, "")
    config.plan()  # refuses what cannot be protected, before any data is read
    return config


def _counted(partition: Mapping[str, Any], dataset: DatasetConfig) -> Mapping[str, Any]:
    """A natural partition's number of clients is in the data."""
    if partition.get("kind") == "natural" and partition.get("clients") is None:
        return {**partition, "clients": dataset.client_count()}
    return partition
