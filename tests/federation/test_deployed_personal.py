"""Personal models in a deployment: they live on their owners' disks, and nowhere else."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inprocess import InProcessGrid
from smalldata import CLASSES, write_records

from fedsofim.clients import Client
from fedsofim.clients.pfedsop import PFedSOPState
from fedsofim.config.schema import parse
from fedsofim.core.arrays import put, take
from fedsofim.federation import server_app
from fedsofim.models import head
from fedsofim.privacy.exact import ExactNoise
from fedsofim.runs.directory import RunDir
from fedsofim.strategies.rule import start, step


@pytest.fixture
def owners(tmp_path: Path) -> list[dict[str, Any]]:
    configs = []
    for i in range(4):
        place = tmp_path / f"owner{i}"
        place.mkdir()
        write_records(place / "records.npz", 60 + 10 * i, seed=i)
        data = str(place / "records.npz")
        budget = {"epsilon": math.inf, "delta": 1e-5, "classes": CLASSES}
        configs.append({"partition-id": i, "data": data, "state": str(place), **budget})
    return configs


def serve(owners: list[dict[str, Any]], tmp_path: Path, data_file: Path, *more: str) -> RunDir:
    given = ["dataset=npz", f"dataset.path={data_file}", "partition.clients=4", "rounds=3"]
    given += ["engine.wait=0.2", "engine.timeout=0.2", f"output.dir={tmp_path / 'run'}", *more]
    return server_app.serve(InProcessGrid(owners), overrides=" ".join(given))


def test_models_and_drifts_survive_restarts_as_by_hand(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    """Every message meets a client that has just started: all it knows, it read from its disk."""
    more = ["strategy=pfedsop", "privacy=none", "participation=0.5", "client.batch_size=20"]
    place = serve(owners, tmp_path, data_file, *more)
    config = parse(place.config())
    files = [np.load(owner["data"]) for owner in owners]
    clients = [
        Client(i, head.examples(f["train_x"].astype(np.float32), f["train_y"], CLASSES))
        for i, f in enumerate(files)
    ]
    theta = np.load(place.path / "model.npz")["theta"]
    server, memory = start(config.strategy, theta), config.client.init(theta, 4)
    for t in range(3):
        present = config.schedule.present(t)
        sent, new = config.client.release(
            config.strategy.broadcast(server),
            [clients[i] for i in present],
            take(memory, present),
            config.plan(),
            lambda client, draw: ExactNoise(),
        )
        memory = put(memory, present, new)
        server = step(config.strategy, server, sent.mean(axis=0), 3)
    with np.load(place.path / "checkpoint.npz") as saved:
        np.testing.assert_array_equal(saved["server.buffers.drift"], server.buffers.drift)
        assert not any(name.startswith("clients.") and saved[name].size for name in saved.files)
    seen = {int(i) for t in range(3) for i in config.schedule.present(t)}
    assert seen != set(range(4)) or max(memory.steps) > min(memory.steps)
    for i in seen:
        (file,) = Path(owners[i]["state"]).glob("run-*.npz")
        with np.load(file) as kept:
            for name in PFedSOPState._fields:
                row = getattr(memory, name)[i]
                np.testing.assert_array_equal(kept[f"memory.{name}"][0], row, err_msg=name)


@pytest.mark.parametrize("name", ["pfedsop", "fedavg_finetune", "ditto", "alone"])
def test_a_deployment_has_no_personal_scores(
    name: str, owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    place = serve(owners, tmp_path, data_file, f"strategy={name}")
    assert [row["accuracy"] for row in place.metrics()] == [None] * 3
    assert not (place.path / "personal.json").exists()
    spent = place.metrics()[-1]["epsilon"]
    assert (spent == 0) == (name == "alone")
    assert spent <= 10
