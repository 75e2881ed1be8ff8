"""A run whose records are with their owners: what the server makes ready."""

from typing import Any

import numpy as np

from data import npz
from data.datasets import load_test
from fedsofim import head
from fedsofim.config import require
from fedsofim.experiment import Config, Experiment
from fedsofim.rng import Purpose, stream
from strategies.roster import Roster


def test_set(config: Config) -> head.Examples | None:
    """The server's own test set, if it has one."""
    if config.dataset.name == "owners":
        return None
    test = load_test(config.dataset, config.extraction.file())
    return head.examples(test.x, test.y, test.classes)


def prepare(config: Config, test: head.Examples | None, roster: Roster) -> Experiment:
    """Make a run ready from what its owners say about themselves: sizes and features, both public.

    Who holds how many records of which class is theirs to know, so it is recorded nowhere.
    """
    require(
        config.privacy.trust == "server",
        "privacy.trust=aggregate: needs secure aggregation, which a deployment does not have yet; "
        "use trust=server, or a simulation",
    )
    owners = {member.client: member for member in roster.members.values()}
    features = next(iter(owners.values())).features
    if test is None:
        assert config.dataset.classes is not None
        none = np.zeros((0, features), np.float32)
        test = head.examples(none, np.zeros(0, np.intp), config.dataset.classes)
    classes = len(test.target)
    theta = head.init(stream(config.seed, Purpose.INIT), classes, features)
    sizes = {i: owner.size for i, owner in sorted(owners.items())}
    record: dict[str, Any] = {
        "clients": config.partition.clients,
        "sizes": list(sizes.values()),
        "run": roster.run,
        "data_sha256": npz.digest(test._asdict()),
    }
    return Experiment(config, config.plan(), [], test, theta, record, deployed=True)
