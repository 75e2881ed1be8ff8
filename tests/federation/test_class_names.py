"""Owners and server agree on what the classes are called, or they do not train together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inprocess import InProcessGrid
from smalldata import CLASSES, FEATURES, write_records

from fedsofim.core.errors import ConfigError
from fedsofim.federation import server_app
from fedsofim.federation.members import NodeError, read_member
from fedsofim.federation.owner import NO_REASON
from fedsofim.runs.directory import RunDir

RIGHT, WRONG = "adipose|debris|smooth tumour", "adipose|smooth tumour|debris"


@pytest.fixture
def owners(tmp_path: Path) -> list[dict[str, Any]]:
    """Three owners that declare names."""
    configs = []
    for i in range(3):
        place = tmp_path / f"owner{i}"
        place.mkdir()
        write_records(place / "records.npz", 60 + 10 * i, seed=i)
        node = {"partition-id": i, "data": str(place / "records.npz"), "state": str(place)}
        budget = {"classes": CLASSES, "names": RIGHT, "epsilon": 10.0, "delta": 1e-5}
        configs.append(node | budget)
    return configs


def serve(grid: InProcessGrid, tmp_path: Path, *overrides: str) -> RunDir:
    given = [
        *("settings=published", "partition.clients=3", "rounds=2", "dataset=owners"),
        *("engine.wait=0.2", "engine.timeout=0.2", f"output.dir={tmp_path / 'run'}"),
    ]
    return server_app.serve(grid, overrides=" ".join([*given, *overrides]))


@pytest.mark.parametrize(
    "agreed", ["dataset.classes=3", '"dataset.classes=[adipose,debris,smooth tumour]"']
)
def test_the_agreed_names_are_kept(
    owners: list[dict[str, Any]], tmp_path: Path, agreed: str
) -> None:
    owners[2]["names"] = ""  # who names none trusts the others
    place = serve(InProcessGrid(owners), tmp_path, agreed)
    assert place.read_json("partition.json")["classes"] == RIGHT.split("|")
    assert "adipose, debris, smooth tumour" in (place.path / "card.md").read_text()


def test_an_owner_refuses_other_names_than_its_own(
    owners: list[dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owners[1]["names"] = WRONG
    with pytest.raises(ConfigError, match="in vain for client 1 of 3"):
        serve(InProcessGrid(owners), tmp_path, '"dataset.classes=[adipose,debris,smooth tumour]"')
    told = (
        "client 1: the run has the classes adipose, debris, smooth tumour, and this owner has "
        "adipose, smooth tumour, debris"
    )
    assert told in caplog.text


def test_the_server_tells_owners_apart_who_mean_different_things(
    owners: list[dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owners[1]["names"] = WRONG
    with pytest.raises(ConfigError, match="in vain for client 1 of 3"):
        serve(InProcessGrid(owners), tmp_path, "dataset.classes=3")
    assert "client 1: its classes are adipose, smooth tumour, debris, and those of" in caplog.text


def test_which_classes_a_file_has_is_told_to_its_owner_alone(
    owners: list[dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with np.load(owners[1]["data"]) as arrays:
        x, y = arrays["train_x"], arrays["train_y"]
    np.savez(owners[1]["data"], x=x, y=y, class_names=np.array(["adipose", "debris", "bone"]))
    with pytest.raises(ConfigError) as error:
        serve(InProcessGrid(owners), tmp_path, "dataset.classes=3")
    assert "bone" not in str(error.value)
    assert NO_REASON in str(error.value)
    assert "bone is not among the agreed adipose, debris, smooth tumour" in caplog.text


@pytest.mark.parametrize(
    "names", ["a|b", "a|b|b", "a||c", "a|b\n|c", 3, ["a", "b", "c"], "x" * 999]
)
def test_names_that_cannot_be_are_refused(names: object) -> None:
    said = {"owner": True, "client": 0, "size": 5, "features": FEATURES, "classes": 3}
    assert read_member({**said, "names": "a|b|c"}, 2, 9, 9).names == "a|b|c"
    with pytest.raises((NodeError, AttributeError)):
        read_member({**said, "names": names}, 2, 9, 9)
