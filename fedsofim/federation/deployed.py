"""A run whose records are with their owners: what the server makes ready."""

from typing import Any

import numpy as np

from fedsofim.config.schema import Config
from fedsofim.core.errors import require
from fedsofim.data import npz
from fedsofim.data.classes import Classes
from fedsofim.data.datasets import load_test
from fedsofim.data.own import Data
from fedsofim.data.records import Dataset
from fedsofim.federation.roster import Roster
from fedsofim.models import head
from fedsofim.models.kinds import Network
from fedsofim.models.records import Records
from fedsofim.runs.experiment import Experiment, first_parameters
from fedsofim.runs.probes import probes_for, with_probes
from fedsofim.transforms.kfc import KFC


def load_test_set(config: Config) -> tuple[head.Examples | None, Classes]:
    """The server's own test set, if it has one, and the classes."""
    dataset = config.dataset
    if isinstance(dataset, Data):
        data = dataset.load()
        test = head.examples(data.test_x, data.test_y, data.classes)
        return test, Classes(data.classes, data.names)
    if dataset.name == "owners":
        assert dataset.agreed is not None
        return None, dataset.agreed
    found = load_test(dataset, config.extraction.file())
    return head.examples(found.x, found.y, found.classes.count), found.classes


def prepare(
    config: Config, test: head.Examples | None, roster: Roster, record: dict[str, Any]
) -> Experiment:
    """Make a run ready from what its owners say about themselves: sizes and features, both public.

    Who holds how many records of which class is theirs to know, so it is recorded nowhere.

    Args:
        config: what was asked for.
        test: the server's own test set, if it has one.
        roster: the owners.
        record: what the run recorded about them when it began; empty for a new one.
    """
    require(
        not config.output.theory,
        "output.theory=true: reads records without clip and noise, which here are their owners'; "
        "it is for simulations",
    )
    # From here on it is settled, whatever owners that come later say.
    roster.features, roster.classes = features, classes = roster.shape()
    roster.names = roster.agreed()
    if test is None:
        none = np.zeros((0, features), np.float32)
        test = head.examples(none, np.zeros(0, np.intp), classes)
    classes = len(test.target)
    network = config.model.network((features,), classes)
    require(config.model.linear, f"model={config.model.name}: a deployment trains a head")
    theta = first_parameters(config, network)
    sizes = record.get("sizes") or [roster.sizes.get(i) for i in range(config.partition.clients)]
    record = {
        "clients": config.partition.clients,
        "sizes": sizes,
        "run": roster.run,
        "data_sha256": npz.digest({"x": test.x, "target": test.target}),
    }
    if roster.names:
        record["classes"] = roster.names.split("|")
    probes = _probes(config, network, features, classes)
    return Experiment(config, config.plan(), [], test, theta, record, deployed=True, probes=probes)


def _probes(config: Config, network: Network, features: int, classes: int) -> Records | None:
    """What the transform is measured on: the server's own file brings the probes."""
    if not isinstance(config.transform, KFC):
        return None
    dataset = config.dataset
    if isinstance(dataset, Data):
        probe_x = dataset.load().probe_x
    else:
        own = dataset.name != "owners"
        probe_x = load_test(dataset, config.extraction.file()).probe_x if own else None
        probe_x = with_probes(config, probe_x) if own else None
    x, y = np.zeros((0, features), np.float32), np.zeros(0, np.intp)
    nothing = Dataset(x, y, x, y, classes, probe_x=probe_x)
    return probes_for(config.transform, network, nothing, config.seed)
