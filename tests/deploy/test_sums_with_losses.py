"""Real processes over TLS, slowly: five clients add to sums, and one's machine stops in a stage."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from smalldata import CLASSES, write_records

from fedsofim.deploy.rehearsal import Federation
from fedsofim.runs.directory import RunDir
from fedsofim.secagg.stages import Stage

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
DYING = Path(__file__).resolve().parent / "hostile" / "dying"
CLIENTS, LAST = 5, 4


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    with Federation(tmp_path) as made:
        made.serve()
        for i in range(CLIENTS):
            write_records(tmp_path / f"records{i}.npz", 60 + 10 * i, seed=i)
            made.register(i)
        made.pin(CLIENTS)
        yield made


def run_with_a_loss(federation: Federation, stage: Stage, *overrides: str) -> str:
    """A run in which the last client's machine stops in this stage of the first round."""
    folder, clean = federation.folder, federation.environment
    for i in range(CLIENTS):
        if i == LAST:
            path = os.pathsep.join([str(DYING), str(PROJECT)])
            federation.environment = {
                **clean,
                "PYTHONPATH": path,
                "DIES_IN": str(int(stage)),
                "DIES_PID": str(folder / "pid"),
            }
        federation.start_client(i, folder / f"records{i}.npz", CLASSES)
    federation.environment = clean
    (folder / "pid").write_text(str(federation.nodes[LAST].pid))
    settings = [
        *("settings=published", "strategy=fedgd", "rounds=2"),
        *("dataset=owners", f"dataset.classes={CLASSES}"),
        *("privacy.trust=aggregate", "aggregation=size", f"partition.clients={CLIENTS}"),
        *("engine.timeout=40", "engine.max_repeats=0", f"output.dir={folder / 'run'}", *overrides),
    ]
    federation.start(federation.run_command(PROJECT, settings), "run").wait(900)
    return (folder / "run.log").read_text()


def charged_rounds(federation: Federation, client: int) -> list[int]:
    """The rounds that a client has charged itself for, as its ledger says."""
    text = (federation.folder / f"client{client}" / "ledger.jsonl").read_text()
    return [int(n) for n in re.findall(r'"round": (-?[0-9]+)', text)]


@pytest.mark.parametrize("stage", list(Stage), ids=lambda stage: stage.name.lower())
def test_a_run_goes_on_without_a_client_that_is_killed(
    stage: Stage, federation: Federation
) -> None:
    told = run_with_a_loss(federation, stage, "secagg.threshold=3")
    rows = RunDir.open(federation.folder / "run").metrics()
    assert len(rows) == 2, told[-3000:]
    assert [why[:8] for why in rows[0]["dropped"]] == ["client 4"], rows
    assert federation.nodes[LAST].poll() is not None  # it really was killed
    for i in range(LAST):
        assert charged_rounds(federation, i) == [0, 1]


def test_a_sum_that_needs_everybody_is_refused_without_one(federation: Federation) -> None:
    told = run_with_a_loss(federation, Stage.MASK)
    assert "round 1: MASK: only 4 clients answered, 5 are needed" in told, told[-3000:]
    assert charged_rounds(federation, 0) == [0]
