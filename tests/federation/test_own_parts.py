"""Parts of the user's own reach simulated clients, and no owner's machine."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from inprocess import InProcessGrid
from smalldata import write_records

from fedsofim.config.schema import parse
from fedsofim.engines.flower import flower_engine
from fedsofim.federation.messages import RELEASE, pack, unpack
from fedsofim.runs import session

Values = Callable[..., dict[str, Any]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flower_carries_a_rule_and_its_client(here: Path, root: Path, values: Values) -> None:
    shutil.copy(root / "examples" / "client.py", here / "look_ahead.py")
    chosen = ["strategy=look_ahead:Ahead", "strategy.lr=0.1"]
    local = session.run(values(*chosen))
    grid = InProcessGrid.simulated(2)
    flower = session.run(values(*chosen, "engine=flower"), engine=flower_engine(grid))
    first, second = (np.load(place.path / "model.npz")["theta"] for place in (local, flower))
    np.testing.assert_array_equal(first, second)
    assert local.read_json("summary.json")["releases"] == 8  # four rounds, two gradients in each


@pytest.mark.parametrize("group", ["client", "strategy", "dataset", "transform", "metric"])
def test_an_owner_imports_nothing_that_a_server_names(
    here: Path, values: Values, group: str
) -> None:
    (here / "hostile.py").write_text("open('imported', 'w').close()\nclass Spy: pass\n")
    job = json.loads(parse(values("partition.clients=1", "strategy=fedgd")).text)
    job[group] = {"name": "hostile:Spy"}
    said = {"job": json.dumps(job), "run": "ab", "round": 0, "clients": [0]}
    write_records(here / "records.npz", 60, seed=0)
    node = {"partition-id": 0, "data": str(here / "records.npz"), "state": str(here)}
    grid = InProcessGrid([{**node, "classes": 3, "epsilon": 10.0, "delta": 1e-5}])
    theta = np.zeros((3, 6), np.float32)
    grid.push_messages([Message(pack({"theta": theta}, said), 1000, RELEASE)])
    (reply,) = grid.pull_messages([])
    _, told = unpack(reply.content)
    assert f"{group}=hostile:Spy: an owner runs only code that is installed" in told["error"]
    assert not (here / "imported").exists()
    assert "hostile" not in sys.modules
