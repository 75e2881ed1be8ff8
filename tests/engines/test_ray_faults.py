"""Workers and machines that Ray loses, slowly; clusters that are not there."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from fedsofim.config.compose import compose
from fedsofim.core.errors import ConfigError
from fedsofim.engines import check
from fedsofim.runs import session

ON_RAY = ["engine=ray", "engine.processes=2", "engine.nodes=4"]


def theta_of(path: Path) -> np.ndarray:
    with np.load(path / "model.npz") as saved:
        return saved["theta"]


def below(ancestor: int) -> Iterator[tuple[int, str]]:
    """The processes that descend from one, with their titles."""
    parents, titles = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text, title = stat.read_text(), (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(text.rpartition(")")[2].split()[1])
        titles[pid] = title.replace(b"\0", b" ").decode(errors="replace")
    for pid in parents:
        up = pid
        while up in parents and up != ancestor:
            up = parents[up]
        if up == ancestor and pid != ancestor:
            yield pid, titles[pid]


def workers(ancestor: int) -> list[int]:
    return [pid for pid, title in below(ancestor) if title.startswith("ray::ClientAppActor")]


def wait_for(path: Path, rows: int, process) -> None:
    deadline = time.monotonic() + 900
    metrics = path / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < rows:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_workers_that_are_killed_are_replaced(start, small, tmp_path):
    """The run ends as one that nothing happened to, and says little."""
    many = [*small, "rounds=25"]
    path = tmp_path / "faulty"
    process = start("run", *many, *ON_RAY, f"output.dir={path}")
    for rows in (3, 10):
        wait_for(path, rows, process)
        os.kill(workers(process.pid)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    whole = tmp_path / "whole"
    session.run(compose([*many, f"output.dir={whole}"]))
    np.testing.assert_array_equal(theta_of(path), theta_of(whole))
    assert "Traceback" not in err
    assert len(err) < 1000


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_told_at_once_and_nothing_is_made(
    inside, small, tmp_path, address
):
    began = time.monotonic()
    done = inside("run", *small, "engine=ray", f"engine.address='{address}'", "output.dir=mine")
    assert time.monotonic() - began < 10
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"address={address}: nobody answers there (Connection refused)" in line
    assert not (tmp_path / "mine").exists()


def test_something_else_at_the_address_is_told(monkeypatch):
    monkeypatch.setattr("fedsofim.engines.cluster.ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match="what answers there is no Ray cluster"):
            check("ray", f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["nonsense", "host:", ":80", "host:99999"])
def test_an_address_has_a_form(address):
    with pytest.raises(ConfigError, match="give host:port, ray://host:port or auto"):
        check("ray", address)


@pytest.fixture
def cluster(monkeypatch):
    """Two machines of Ray's, in so far as one can be both."""
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.second = made.add_node(num_cpus=1)
    yield made
    made.shutdown()


@pytest.mark.slow
def test_a_sweep_on_two_machines_gives_what_one_gives_and_goes_on(
    cluster, cli, start, small, tmp_path
):
    """Killed on the way, and given again; and with the same number of parts, every bit."""
    grid = [*small, "rounds=300", "strategy.lr=0.1,0.3", "seed=0,1,2,3,4,5"]
    assert cli("sweep", *grid, "output.dir=one", "--jobs", "2", seconds=300).returncode == 0
    asked = ["sweep", *grid, "output.dir=two", "--engine", "ray", "--jobs", "2"]
    asked += ["--address", cluster.address]
    process, done = start(*asked), tmp_path / "two" / "results.jsonl"
    deadline = time.monotonic() + 900
    while not done.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    before = done.read_bytes()
    again = cli(*asked, seconds=300)
    assert again.returncode == 0, again.stderr
    assert done.read_bytes().startswith(before)  # what was done is not done again
    one, two = (tmp_path / name / "results.csv" for name in ("one", "two"))
    assert one.read_text() == two.read_text()


@pytest.mark.slow
def test_a_run_survives_the_loss_of_a_machine(cluster, start, small, tmp_path):
    path, whole = tmp_path / "faulty", tmp_path / "whole"
    where = ["engine=ray", f"engine.address='{cluster.address}'", "engine.nodes=4"]
    process = start("run", *small, "rounds=60", *where, f"output.dir={path}")
    wait_for(path, 5, process)
    cluster.remove_node(cluster.second, allow_graceful=False)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    session.run(compose([*small, "rounds=60", f"output.dir={whole}"]))
    np.testing.assert_array_equal(theta_of(path), theta_of(whole))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "signals"), [(3, [signal.SIGTERM]), (0, [signal.SIGINT, signal.SIGINT])]
)
def test_a_signal_ends_a_run_on_ray_and_the_line_says_how_to_go_on(
    start, small, tmp_path, rows, signals
):
    """Ray takes SIGTERM for itself; a second Ctrl-C waits for no worker that is still to come."""
    many, path = [*small, "rounds=100000"], tmp_path / "mine"
    process = start("run", *many, *ON_RAY, f"output.dir={path}")
    wait_for(path, rows, process)
    while not rows and not any("raylet" in title for _, title in below(process.pid)):
        assert process.poll() is None
        time.sleep(0.05)
    for number in signals:
        process.send_signal(number)
        time.sleep(1)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.splitlines()[-1].endswith(f"Continue with: fedsofim resume {path}")
    assert err == ""


def test_who_waits_on_a_grid_hears_of_the_end():
    from fedsofim.engines.ray import Ended, give_up_after

    class Grid:
        def get_node_ids(self):
            return [1]

        push_messages = pull_messages = get_node_ids

    grid, ended = Grid(), Event()
    give_up_after(ended, grid)
    assert grid.get_node_ids() == [1]
    ended.set()
    with pytest.raises(Ended):
        grid.pull_messages()
