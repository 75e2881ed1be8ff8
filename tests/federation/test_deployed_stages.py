"""Owners on other machines, whose records are mapped: every stage is on their own books."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inprocess import InProcessGrid
from smalldata import CLASSES, write_records

from fedsofim.core.errors import ConfigError
from fedsofim.federation import server_app
from fedsofim.models.head import examples
from fedsofim.runs.directory import RunDir

PRIVATE = ("strategy=fedgd", "strategy.lr=1", "transform=private", "transform.radius=10")


@pytest.fixture
def owners(tmp_path: Path) -> list[dict[str, Any]]:
    configs = []
    for i in range(3):
        place = tmp_path / f"owner{i}"
        place.mkdir()
        write_records(place / "records.npz", 60 + 10 * i, seed=i)
        budget = {"epsilon": 10.0, "delta": 1e-5, "classes": CLASSES}
        data = str(place / "records.npz")
        configs.append({"partition-id": i, "data": data, "state": str(place), **budget})
    return configs


def serve(owners: list[dict[str, Any]], tmp_path: Path, data_file: Path, *more: str) -> RunDir:
    given = [
        *("dataset=npz", f"dataset.path={data_file}", f"partition.clients={len(owners)}"),
        *("rounds=3", "engine=flower", "engine.wait=5", f"output.dir={tmp_path / 'run'}", *more),
    ]
    return server_app.serve(InProcessGrid(owners), overrides=" ".join(given))


def test_owners_charge_each_stage_and_the_model_is_for_raw_features(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    place = serve(owners, tmp_path, data_file, *PRIVATE)
    theta = np.load(place.path / "model.npz")["theta"]
    with np.load(data_file) as file:
        test = examples(
            file["test_x"].astype(np.float32), file["test_y"], int(file["test_y"].max()) + 1
        )
    assert test.evaluate(theta)[0] == place.metrics()[-1]["accuracy"]
    for owner in owners:
        lines = (Path(owner["state"]) / "ledger.jsonl").read_text().splitlines()
        rounds = [line.split('"round": ')[1].split(",")[0] for line in lines if '"round"' in line]
        assert rounds == ["-2", "-1", "0", "1", "2"]


def test_an_owner_may_refuse_the_transform(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('transforms = ["none"]\n')
    with pytest.raises(ConfigError, match="transforms"):
        serve([{**o, "policy": str(policy)} for o in owners], tmp_path, data_file, *PRIVATE)


def test_owners_of_any_features_are_met_before_settings_are_settled(
    owners: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Their sizes decide the rate, a release finds their norms, and all is on their books."""
    given = ["dataset=owners", f"dataset.classes={CLASSES}", f"partition.clients={len(owners)}"]
    given += ["engine=flower", "engine.wait=5", "rounds=2", f"output.dir={tmp_path / 'run'}"]
    place = server_app.serve(InProcessGrid(owners), overrides=" ".join(given))
    config = place.config()
    assert "210 records, 6 features, 3 classes" in config["note"]
    assert config["transform"]["name"] == "private"
    for owner in owners:
        lines = (Path(owner["state"]) / "ledger.jsonl").read_text().splitlines()
        rounds = [line.split('"round": ')[1].split(",")[0] for line in lines if '"round"' in line]
        assert rounds == ["-4", "-3", "-2", "-1", "0", "1"]
