"""Real processes on the loopback address, slowly: hostile clients and servers, and other code."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from smalldata import CLASSES, write_records

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.deploy import signing
from fedsofim.deploy.rehearsal import Federation
from fedsofim.runs.directory import RunDir

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
HOSTILE = Path(__file__).resolve().parent / "hostile"
OWNERS = ["settings=published", "strategy=fedgd", "dataset=owners", f"dataset.classes={CLASSES}"]


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    with Federation(tmp_path) as made:
        made.sign(PROJECT)
        yield made


def add_clients(federation: Federation, clients: int) -> None:
    for i in range(clients):
        write_records(federation.folder / f"records{i}.npz", 60 + 10 * i, seed=i)
        federation.add_client(i, federation.folder / f"records{i}.npz", CLASSES)


def run(federation: Federation, app: Path | str, name: str, *overrides: str) -> str:
    """Start a run, wait for its end, and return what was told."""
    settings = [*OWNERS, f"output.dir={federation.folder / name}", *overrides]
    federation.start(federation.run_command(app, settings), name).wait(400)
    return (federation.folder / f"{name}.log").read_text()


def infect(federation: Federation, part: str, **variables: str) -> dict[str, str]:
    """From now on programs load other code first; returns the environment without it."""
    clean, path = federation.environment, os.pathsep.join([str(HOSTILE / part), str(PROJECT)])
    federation.environment = {**clean, "PYTHONPATH": path, **variables}
    return clean


def test_a_hostile_client_is_dropped_and_the_others_train(federation: Federation) -> None:
    folder = federation.folder
    federation.serve()
    add_clients(federation, 2)
    write_records(folder / "records2.npz", 80, seed=2)
    federation.register(2)
    clean = infect(federation, "client", EVIL_LOG=str(folder / "evil.log"))
    federation.start_client(2, folder / "records2.npz", CLASSES)
    federation.environment = clean
    app = signing.app_name(folder / "signed")
    told = run(federation, app, "run", "partition.clients=3", "rounds=5", "engine.min_clients=2")
    rows = RunDir.open(folder / "run").metrics()
    assert len(rows) == 5, told[-3000:]
    assert (folder / "evil.log").read_text().split() == list("01234")  # it really tried them all
    reasons = [row["dropped"] for row in rows]
    assert all(len(each) == 1 and each[0].startswith("client 2: ") for each in reasons), reasons
    assert "said 80 before" in reasons[1][0]
    assert "has charged itself" in reasons[2][0]
    assert "can't be unpacked" in reasons[4][0]
    assert "\x1b[31m" not in told
    assert "\nround 5 of 5: accuracy 99.99" not in told
    assert max(map(len, told.splitlines())) < 1000


def test_a_hostile_server_gets_nothing_from_an_owner(federation: Federation) -> None:
    folder = federation.folder
    job = parse(compose([*OWNERS, "partition.clients=1", "rounds=4"])).text
    (folder / "job.json").write_text(job)
    log = folder / "evil.json"
    clean = infect(federation, "server", EVIL_JOB=str(folder / "job.json"), EVIL_LOG=str(log))
    federation.serve()
    federation.environment = clean
    add_clients(federation, 1)
    told = run(federation, signing.app_name(folder / "signed"), "run", "partition.clients=1")
    assert log.exists(), told[-3000:]
    said = json.loads(log.read_text())
    assert len(said) == 11
    for name, reply in said.items():
        assert not reply["failed"], name  # the owner's process lives, and says one sentence
        assert reply["error"], name
        assert reply["arrays"] == [], name
        assert str(folder) not in reply["error"], name
    ledger = folder / "client0" / "ledger.jsonl"
    assert not ledger.exists() or not ledger.read_text().strip()
    assert federation.nodes[0].poll() is None


def altered_project(folder: Path) -> Path:
    """The project, with a client that leaves a mark when its code is loaded."""
    rooms = ["fedsofim", "strategies", "clients", "conf", "data", "pyproject.toml", "README.md"]
    folder.mkdir()
    for name in [*rooms, "LICENSE"]:
        source = PROJECT / name
        leave = shutil.ignore_patterns("__pycache__", "*.npz", "*.pt", "*.so")
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=leave)
        else:
            shutil.copy(source, folder / name)
    file = folder / "fedsofim" / "federation" / "client_app.py"
    mark = "\nimport os\n\nPath(os.environ['MARK']).touch()\n"
    file.write_text(file.read_text() + mark)
    return folder


def test_only_signed_code_runs_where_a_key_is_trusted(
    federation: Federation, tmp_path: Path
) -> None:
    """Client 0 trusts the signer; client 1 trusts anyone, and shows that the other code works."""
    folder, altered = federation.folder, altered_project(tmp_path / "altered")
    marks = [folder / f"mark{i}" for i in range(2)]
    federation.serve()
    clean, keys = federation.environment, federation.trusted
    for i, trusted in enumerate([keys, None]):
        write_records(folder / f"records{i}.npz", 60, seed=i)
        federation.environment = {**clean, "MARK": str(marks[i])}
        federation.trusted = trusted
        federation.add_client(i, folder / f"records{i}.npz", CLASSES)
    federation.environment, both = clean, "partition.clients=2"

    told = run(federation, altered, "unsigned", both, "engine.wait=20")
    assert "in vain for client 0 of 2" in told
    assert marks[1].exists()
    assert not marks[0].exists()
    assert "could not be verified" in (folder / "client0.log").read_text()

    signed, app = folder / "signed", signing.app_name(folder / "signed")
    kept = {file.name: file.read_bytes() for file in signed.iterdir()}
    signing.make_bundle(altered, signed)
    (signed / signing.SIGNATURES).write_bytes(kept[signing.SIGNATURES])
    told = run(federation, app, "altered", both, "engine.wait=20")
    assert "in vain for client 0 of 2" in told
    assert not marks[0].exists()
    assert "FAB verification failed" in (folder / "client0.log").read_text()

    for name, content in kept.items():
        (signed / name).write_bytes(content)
    told = run(federation, app, "signed-run", both, "rounds=1")
    assert len(RunDir.open(folder / "signed-run").metrics()) == 1, told[-3000:]
