"""A run, from its config to the pieces that the engines move."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from clients import CLIENTS, Client, Program
from data.datasets import Dataset, DatasetConfig, load
from data.features import Extraction
from data.partition import Partition, statistics
from data.pixels import load_pixels
from data.recipe import BackboneConfig, FeaturesConfig
from fedsofim.config import ConfigError, build, choose, require
from fedsofim.linalg import Array
from fedsofim.models import MODELS, Head, Model
from fedsofim.privacy.plan import Aggregation, Plan, Privacy
from fedsofim.probing import probes_for
from fedsofim.records import Records
from fedsofim.rng import Purpose, stream
from fedsofim.transform import TRANSFORMS, Oracle, Transform
from strategies import STRATEGIES, Rule
from strategies.rule import ServerState, start


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What carries arrays between server and clients; it changes speed, never results."""

    name: Literal["local"] = "local"


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where a run is written, and how often its state is saved.

    Attributes:
        dir: the run's own directory; by default `root`/<date>/<name>.
        root: where runs without a directory of their own go.
        checkpoint_every: rounds between checkpoints.
    """

    dir: str | None = None
    root: str = "outputs"
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        require(
            self.checkpoint_every >= 1,
            f"checkpoint_every={self.checkpoint_every}: must be at least 1",
        )


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides a run."""

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

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"rounds={self.rounds}: must be at least 1")
        require(self.seed >= 0, f"seed={self.seed}: must be >= 0")
        sent = self.strategy.broadcast(start(self.strategy, np.zeros((2, 2), np.float32)))
        require(
            self.client.needs <= sent.keys() and self.client.setup_kind == self.strategy.setup_kind,
            f"client={type(self.client).__name__}: does not go with strategy={self.strategy_name}",
        )
        require(
            self.privacy.trust == "server" or self.client.shares_noise,
            "privacy.trust=aggregate: this client acts on its own releases before they are summed, "
            "which the shared noise does not hide; use trust=server",
        )
        require(
            self.model.linear or self.client.setup_kind is None,
            f"strategy={self.strategy_name}: reads features, and so needs model=head",
        )
        z, oracle = self.privacy.noise_multiplier, self.transform
        noisy = z != 0 if z is not None else math.isfinite(self.privacy.epsilon)
        require(
            not (isinstance(oracle, Oracle) and noisy) or oracle.i_know_this_is_not_private,
            "transform=oracle: reads private records, which no noise then hides; use privacy=none, "
            "or say transform.i_know_this_is_not_private=true",
        )

    @property
    def private(self) -> bool:
        """Whether the run promises anything."""
        return math.isfinite(self.epsilon())

    @property
    def name(self) -> str:
        """A short name that tells runs apart."""
        budget = "not-private"
        if self.private:
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
        releases = self.client.cost(self.rounds)
        try:
            return self.privacy.plan(
                releases=releases,
                clients=self.partition.clients,
                aggregation=self.aggregation,
                setup_share=self.client.setup_share,
            )
        except ConfigError as error:
            raise ConfigError(f"privacy.{error}") from None

    def epsilon(self, rounds: int | None = None) -> float:
        """The epsilon spent after `rounds` rounds, after all by default; `inf` for no promise."""
        if self.transform.source == "private":
            return math.inf
        return self.plan().epsilon(self.client.cost(self.rounds if rounds is None else rounds))


def parse(values: Mapping[str, Any]) -> Config:
    """Check a plain config, as Hydra composes it, and give it types."""
    kinds: dict[str, type[Any]] = {
        "dataset": DatasetConfig,
        "backbone": BackboneConfig,
        "features": FeaturesConfig,
        "partition": Partition,
        "privacy": Privacy,
        "engine": Engine,
        "output": Output,
    }
    for key in (*kinds, "client", "strategy"):
        require(isinstance(values.get(key), Mapping), f"{key}: a value is missing")
    typed = dict(values)
    registries: dict[str, Mapping[str, type[Any]]] = {
        "client": CLIENTS,
        "strategy": STRATEGIES,
        "model": MODELS,
        "transform": TRANSFORMS,
    }
    for key, registry in registries.items():
        if key not in values:
            continue  # a default; the config was written before there was a choice
        typed[key] = dict(values[key])
        kinds[key] = choose(registry, typed[key].pop("name", None), f"{key}.name")
    typed["dataset"] = build(kinds.pop("dataset"), values["dataset"], "dataset")
    typed["partition"] = _counted(values["partition"], typed["dataset"])
    for key, kind in kinds.items():
        typed[key] = build(kind, typed[key], key)
    config = build(Config, {**typed, "strategy_name": values["strategy"]["name"]}, "")
    config.plan()  # refuses what cannot be protected, before any data is read
    return config


def _counted(partition: Mapping[str, Any], dataset: DatasetConfig) -> Mapping[str, Any]:
    """A natural partition's number of clients is in the data."""
    if partition.get("kind") == "natural" and partition.get("clients") is None:
        return {**partition, "clients": dataset.client_count()}
    return partition


class Experiment(NamedTuple):
    """A run that is ready to start.

    Attributes:
        config: what was asked for.
        plan: the noise that keeps the budget.
        clients: the clients with their records.
        test: the server's own test set.
        theta: initial parameters, `(K, F+1)` for a head, `(1, d)` for a deep network.
        partition: statistics of who holds what; the simulator's knowledge, never a release.
        probes: what the transform's factors are measured on, if there is one.
    """

    config: Config
    plan: Plan
    clients: list[Client]
    test: Records
    theta: Array
    partition: dict[str, Any]
    probes: Records | None = None


def prepare(config: Config) -> Experiment:
    """Load the data, divide it and draw the initial parameters."""
    data = _load(config)
    network = config.model.network(data.train_x.shape[1:], data.classes)
    parts = config.partition.split(data.train_y, data.classes, config.seed, data.client_id)
    clients = [
        Client(i, network.records(data.train_x[part], data.train_y[part]))
        for i, part in enumerate(parts)
    ]
    theta = network.init(stream(config.seed, Purpose.INIT))
    record = statistics(parts, data.train_y, data.classes)
    record["data_sha256"] = data.sha256
    test = network.records(data.test_x, data.test_y)
    probes = probes_for(config.transform, network, data, config.seed)
    return Experiment(config, config.plan(), clients, test, theta, record, probes)


def _load(config: Config) -> Dataset:
    """The data as the model takes it: images for a network where there are any, else features."""
    dataset = config.dataset
    images = dataset.holds_images() if dataset.path else dataset.embedded is None
    if images and not config.model.linear:
        return load_pixels(dataset, config.features.store)
    return load(dataset, config.extraction.file())


class RunState(NamedTuple):
    """All that a run knows between rounds; the client part is stacked by client."""

    server: ServerState
    clients: Any


def begin(experiment: Experiment) -> RunState:
    """The state before the first round."""
    config, theta = experiment.config, experiment.theta
    server = refresh(experiment, start(config.strategy, theta))
    return RunState(server, config.client.init(theta, len(experiment.clients)))


def refresh(experiment: Experiment, state: ServerState) -> ServerState:
    """Renew what all clients will receive in the next round, where it is due.

    Every engine calls this after a step; it follows from the state alone.
    """
    transform, probes = experiment.config.transform, experiment.probes
    shared = transform.refresh(state.t, state.theta, probes, state.shared)
    return state._replace(shared=shared)
