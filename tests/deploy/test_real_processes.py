"""The real thing, slowly: Ray, `flwr run`, and machines over TLS, all on the loopback address."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from smalldata import CLASSES, write_records

from fedsofim.deploy import commands as deploy
from fedsofim.deploy import programs
from fedsofim.deploy.rehearsal import Federation, free_port
from fedsofim.federation.owner import NO_REASON
from fedsofim.privacy.ledger import opened
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir

pytestmark = pytest.mark.slow

ROUNDS = 20  # enough for all that happens to a deployment here
PROJECT = Path(__file__).resolve().parents[2]
Values = Callable[..., dict[str, Any]]


def theta_of(path: Path) -> Any:
    return np.load(path / "model.npz")["theta"]


def until(holds: Callable[[], bool], seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(1)


@pytest.mark.parametrize("name", ["sofim", "fedgd", "scaffold"])
def test_ray_gives_the_local_run(name: str, values: Values) -> None:
    local = session.run(values(f"strategy={name}"))
    options = ["engine=ray", "engine.processes=2", "engine.nodes=5"]
    ray = session.run(values(f"strategy={name}", *options))
    np.testing.assert_array_equal(theta_of(local.path), theta_of(ray.path))


@pytest.fixture(scope="module")
def flwr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """`flwr run` on a local SuperLink of our own, which ends with the tests."""
    home = tmp_path_factory.mktemp("flwr")
    port = str(free_port())
    environment = programs.environment(
        FLWR_HOME=str(home),
        FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=port,
        PYTHONPATH=os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]),
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    )

    def run(*arguments: str) -> str:
        command = [programs.program("flwr"), "run", str(PROJECT), "--stream", *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        return done.stdout + done.stderr

    yield run
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if port.encode() in words and any(b"flower-superlink" in word for word in words):
            os.kill(int(file.parent.name), signal.SIGTERM)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("sofim", ""),
        ("sofim", "num-supernodes=20 client-resources-num-cpus=1"),
        ("fedgd", ""),
    ],
)
def test_flwr_run_gives_the_local_run(
    name: str, nodes: str, flwr: Callable[..., str], tmp_path: Path
) -> None:
    """On the embedded features, 20 clients, with Flower's two default nodes or one for each."""
    from fedsofim.config.compose import compose

    local = session.run(
        compose([f"strategy={name}", "rounds=3", f"output.dir={tmp_path / 'local'}"])
    )
    config = f'overrides="strategy={name} rounds=3 output.dir={tmp_path / "flwr"}"'
    told = flwr("--run-config", config, *(["--federation-config", nodes] if nodes else []))
    assert "round 3 of 3: accuracy" in told
    np.testing.assert_array_equal(theta_of(local.path), theta_of(tmp_path / "flwr"))
    assert len(RunDir.open(tmp_path / "flwr").metrics()) == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("strategy=nosuch", "fedsofim: strategy=nosuch: unknown; choose one of"),
        ("privacy.epsilonn=1", "did you mean privacy.epsilon?"),
        ("dataset=npz dataset.path=/nowhere.npz", "/nowhere.npz: there is no such file"),
    ],
)
def test_mistakes_are_told_in_the_stream(
    overrides: str, message: str, flwr: Callable[..., str]
) -> None:
    told = flwr("--run-config", f'overrides="{overrides}"')
    assert message in told
    assert "Traceback" not in told


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setenv("FEDSOFIM_STATE", str(tmp_path / "state"))  # where a rehearsal keeps it
    with Federation(tmp_path) as made:
        made.serve()
        yield made


def start_run(
    federation: Federation, overrides: list[str], resume: str = ""
) -> "subprocess.Popen[bytes]":
    return federation.start(federation.run_command(PROJECT, overrides, resume), "run")


def test_a_deployment_survives_what_happens(
    federation: Federation, tmp_path: Path, data_file: Path
) -> None:
    """Three owners over TLS. Strangers stay out; a client and then the server are killed."""
    files = [tmp_path / f"records{i}.npz" for i in range(4)]
    for i, file in enumerate(files):
        write_records(file, 80 + i, seed=i)
    for i in range(3):
        federation.add_client(i, files[i], CLASSES)

    # A key that was not registered, and no key at all, are refused.
    deploy.prepare_client(tmp_path / "client3")
    federation.start_client(3, files[3], CLASSES)
    keyless = programs.client_command(
        tmp_path / "client3",
        server=f"127.0.0.1:{federation.port}",
        certificate=tmp_path / "server" / "ca.crt",
        node="partition-id=3",
        port=free_port(),
    )
    where = keyless.index("--auth-supernode-private-key")
    nobody = federation.start(keyless[:where] + keyless[where + 2 :], "keyless")
    assert federation.nodes.pop(3).wait(120) != 0
    assert nobody.wait(120) != 0

    place = tmp_path / "run"
    overrides = [
        *(
            "settings=published",
            "dataset=npz",
            f"dataset.path={data_file}",
            "partition.clients=3",
            f"rounds={ROUNDS}",
        ),
        *("engine.min_clients=2", "engine.timeout=60", f"output.dir={place}"),
    ]
    run = start_run(federation, overrides)
    rounds = lambda: len(RunDir(place).metrics()) if place.exists() else 0  # noqa: E731

    # A client dies in the middle; the others go on; it comes back.
    until(lambda: rounds() >= 2)
    federation.nodes[2].kill()
    federation.nodes[2].wait()
    seen = rounds()
    until(lambda: rounds() >= seen + 2)
    ledger = opened(tmp_path / "client2")
    before = len(ledger.charges())
    assert before < rounds()

    def revived() -> bool:
        """Start again what ended, as `fedsofim deploy client` does: a node is refused at first."""
        for i, node in federation.nodes.items():
            if node.poll() is not None:
                federation.start_client(i, files[i], CLASSES)
        return False

    until(lambda: revived() or len(ledger.charges()) > before)

    # The server dies; a new one, and a new run, continue from the last checkpoint.
    assert run.poll() is None
    assert federation.server is not None
    federation.server.kill()
    federation.server.wait()
    run.wait(120)
    done = rounds()
    assert done < ROUNDS
    federation.serve()
    again = start_run(federation, [], resume=str(place))
    until(lambda: revived() or again.poll() is not None, 900)
    assert (place / "summary.json").exists(), (tmp_path / "run.log").read_text()[-3000:]
    rows = RunDir.open(place).metrics()
    assert [row["round"] for row in rows] == list(range(1, ROUNDS + 1))
    assert any(line.startswith("client 2: ") for row in rows for line in row.get("dropped", []))
    assert json.loads((place / "summary.json").read_text())["epsilon"] <= 10
    for i in range(3):
        spent = opened(tmp_path / f"client{i}")
        assert spent.epsilon() <= 10
        assert len(spent.charges()) <= ROUNDS


def test_faults_of_nodes_are_told_in_the_stream(
    federation: Federation, tmp_path: Path, data_file: Path
) -> None:
    write_records(tmp_path / "good.npz", 80, seed=0)
    np.savez(tmp_path / "narrow.npz", x=np.zeros((9, 4), np.float32), y=np.zeros(9, int))
    for i, name in enumerate(["good", "narrow", "absent"]):
        federation.add_client(i, tmp_path / f"{name}.npz", CLASSES)
    overrides = [
        *(
            "settings=published",
            "dataset=npz",
            f"dataset.path={data_file}",
            "partition.clients=3",
            "rounds=2",
        ),
        *("engine.wait=150", f"output.dir={tmp_path / 'run'}"),
    ]
    start_run(federation, overrides).wait(400)
    told = (tmp_path / "run.log").read_text()
    assert "client 1: its records have 4 features, not 6" in told
    assert f"client 2: {NO_REASON}" in told
    assert "absent.npz" not in told
    assert "Traceback" not in told
    assert "absent.npz: there is no such data file" in (tmp_path / "client2.log").read_text()
