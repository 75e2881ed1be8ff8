"""A run made ready: the pieces that the engines move."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedsofim.clients import Client
from fedsofim.config.schema import Config
from fedsofim.core.arrays import Array
from fedsofim.core.rng import Purpose, stream
from fedsofim.core.threads import one_thread_a_product
from fedsofim.data.catalog import locate
from fedsofim.data.datasets import DatasetConfig, load
from fedsofim.data.download import Watch
from fedsofim.data.own import Data
from fedsofim.data.partition import statistics
from fedsofim.data.pixels import load_pixels
from fedsofim.data.records import Dataset
from fedsofim.models.kinds import Network
from fedsofim.models.records import Records
from fedsofim.privacy.plan import Plan
from fedsofim.runs import personal_tests as personal
from fedsofim.runs.probes import probes_for, with_probes
from fedsofim.runs.record import Record, opened
from fedsofim.strategies.average import averaged, blank
from fedsofim.strategies.rule import ServerState, start

DEVICE = "cpu"  # that heads and networks are trained on; features are made elsewhere


class Experiment(NamedTuple):
    """A run that is ready to start.

    Attributes:
        config: what was asked for.
        plan: the noise that keeps the budget.
        clients: the clients with their records.
        test: the server's own test set; without records if it has none.
        theta: initial parameters, `(K, F+1)` for a head, `(1, d)` for a deep network.
        partition: statistics of who holds what; the simulator's knowledge, never a release.
        own_tests: a test set for each client, where clients have models of their own.
        deployed: whether the records are with their owners, on other machines.
        probes: what the transform's factors are measured on, if there is one.
        made: where the features were made, if that is known.
    """

    config: Config
    plan: Plan
    clients: list[Client]
    test: Records
    theta: Array
    partition: dict[str, Any]
    own_tests: Sequence[Records] = ()
    deployed: bool = False
    probes: Records | None = None
    made: str = ""

    @property
    def checkpoint_every(self) -> int:
        """Rounds between checkpoints.

        A deployment saves every round: going back over rounds whose releases the clients no longer
        keep would cost them again. So does a simulation whose noise cannot be drawn again.
        """
        once = self.deployed or self.config.privacy.noise != "seeded"
        return 1 if once else self.config.output.checkpoint_every


@one_thread_a_product()
def prepare(config: Config, given: Dataset | None = None) -> Experiment:
    """Load the data, if they are not given, divide them and draw the initial parameters."""
    data, parts = load_divided(config, given)
    network = config.model.network(data.train_x.shape[1:], data.classes)
    clients = clients_of(network, data, parts)
    theta = first_parameters(config, network)
    record = statistics(parts, data.train_y, data.classes)
    record["data_sha256"] = data.sha256
    record["shape"] = list(data.train_x.shape[1:])
    if data.names:
        record["classes"] = list(data.names)
    test = network.records(data.test_x, data.test_y)
    own_tests: Sequence[Records] = ()
    if config.client.keeps_models and test.size:
        own_tests = personal.own_test_sets(test, np.array(record["counts"]), config.seed)
    probes = probes_for(config.transform, network, data, config.seed)
    ready = Experiment(config, config.plan(), clients, test, theta, record, own_tests)
    return ready._replace(probes=probes, made=data.made)


def first_parameters(config: Config, network: Network) -> Array:
    """Drawn from the seed; zeros for mapped records, whose classes then begin alike."""
    theta = network.init(stream(config.seed, Purpose.INIT))
    return np.zeros_like(theta) if config.transform.maps else theta


def load_divided(config: Config, given: Dataset | None = None) -> tuple[Dataset, list[Array]]:
    """The data as the model takes it, and which training records each client holds.

    A network takes images where there are any; all else takes features.
    """
    data = _load(config) if given is None else given
    return data, config.partition.split(data.train_y, data.classes, config.seed, data.client_id)


def _load(config: Config) -> Dataset:
    dataset = config.dataset
    if isinstance(dataset, Data):
        return dataset.load()
    if takes_pixels(config):
        return load_pixels(dataset, config.features.store)
    data = load(dataset, config.extraction.file())
    return data._replace(probe_x=with_probes(config, data.probe_x))


def fetch(config: Config, watch: Watch) -> None:
    """Download what is not there; and extract features, unless the model reads the pixels."""
    if takes_pixels(config):
        assert isinstance(config.dataset, DatasetConfig)
        locate(config.dataset, config.features.store, watch)
    else:
        config.extraction.file(watch)
        with_probes(config, None, watch)


def takes_pixels(config: Config) -> bool:
    """Whether the model is trained from pixels on, so that no features are wanted."""
    dataset = config.dataset
    if config.model.linear or isinstance(dataset, Data):
        return False
    return dataset.of_images()


def clients_of(network: Network, data: Dataset, parts: Sequence[Array]) -> list[Client]:
    """The clients, each with its part of the training records."""
    return [
        Client(i, network.records(data.train_x[part], data.train_y[part]))
        for i, part in enumerate(parts)
    ]


class RunState(NamedTuple):
    """All that a run knows between rounds.

    Attributes:
        server: what the server knows.
        clients: what clients remember, stacked by client.
        record: what was released, and on what terms; engines leave it to the session.
    """

    server: ServerState
    clients: Any
    record: Record = Record()


@one_thread_a_product()
def begin(experiment: Experiment) -> RunState:
    """The state before the first round."""
    config, theta = experiment.config, experiment.theta
    server = refresh(experiment, start(config.strategy, theta, len(config.stages)))
    server = server._replace(average=blank(config.average, theta))
    memory = config.client.init(theta, len(experiment.clients))
    return RunState(server, memory, opened(config, experiment.plan))


@one_thread_a_product()
def refresh(experiment: Experiment, state: ServerState) -> ServerState:
    """Renew what all clients will receive in the next round, where it is due, and the average.

    Every engine calls this after a step; it follows from the state alone.
    """
    transform, probes = experiment.config.transform, experiment.probes
    shared = transform.refresh(max(0, state.t), state.theta, probes, state.shared)
    config = experiment.config
    return averaged(config.average, state._replace(shared=shared), config.rounds)
