"""What a run leaves behind, whatever happens to it."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime, timedelta
from html import escape
from unittest.mock import Mock

import numpy as np
import pytest

from fedsofim.config.compose import compose
from fedsofim.core.errors import ConfigError, Stopped
from fedsofim.runs import session
from fedsofim.runs.observer import Text
from fedsofim.strategies import STRATEGIES

FILES = {
    "config.yaml",
    "metrics.jsonl",
    "summary.json",
    "about.json",
    "scores.json",
    "clients.json",
    "model.npz",
    "partition.json",
    "report.html",
    "card.md",
    "checkpoint.npz",
}


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def rows_of(path):
    return [strict(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def theta_of(path):
    with np.load(path / "model.npz", allow_pickle=False) as model:
        return model["theta"]


@pytest.fixture
def run(tmp_path, small):
    def start(*overrides, name="run"):
        values = compose([*small, f"output.dir={tmp_path / name}", *overrides])
        return session.run(values, observer=Text()).path

    return start


@pytest.mark.parametrize("privacy", ["dp", "none"])
def test_the_directory_keeps_its_contract(run, privacy):
    path = run(f"privacy={privacy}")
    assert {p.name for p in path.iterdir()} == FILES
    rows, summary = rows_of(path), strict((path / "summary.json").read_text())
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        assert {"round", "accuracy", "loss", "epsilon", "seconds"} <= row.keys()
        assert 0 <= row["accuracy"] <= 1
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    keys = [
        "strategy",
        "dataset",
        "accuracy",
        "epsilon",
        "delta",
        "noise_multiplier",
        "rounds",
        "seconds",
    ]
    assert set(keys) <= summary.keys()
    assert summary["strategy"] == "sofim"
    assert summary["dataset"] == "npz"
    assert summary["rounds"] == 6
    assert summary["accuracy"] == rows[-1]["accuracy"]
    assert theta_of(path).shape == (3, 6)
    partition = strict((path / "partition.json").read_text())
    assert len(partition["sizes"]) == 4
    if privacy == "dp":
        spent = [row["epsilon"] for row in rows]
        assert spent == sorted(spent)
        assert spent[-1] == summary["epsilon"] == pytest.approx(10, rel=1e-6)
        assert summary["epsilon"] <= 10
    else:
        assert summary["epsilon"] is summary["delta"] is None
        assert summary["noise_multiplier"] == 0
        assert all(row["epsilon"] is None for row in rows)


def test_the_model_is_the_one_that_was_measured(run, arrays):
    path = run("privacy=none", "rounds=40")
    theta = theta_of(path)
    logits = arrays["test_x"] @ theta[:, :-1].T + theta[:, -1]  # the bias comes last
    accuracy = (logits.argmax(axis=1) == arrays["test_y"]).mean()
    assert accuracy == rows_of(path)[-1]["accuracy"]
    assert accuracy > 0.8


@pytest.mark.parametrize("privacy", ["dp", "none"])
def test_the_report_stands_alone(run, privacy):
    page = (run(f"privacy={privacy}", "rounds=1") / "report.html").read_text()
    ours = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)  # without the libraries
    assert not re.search(r"<script src|<img|<iframe|@import|url\(|\bsrc\s*=", ours)
    assert {link[0] for link in re.findall(r"href=\"([^\"]+)", ours)} <= {"#", "d"}  # data:,
    assert "https://" not in ours
    assert "default-src 'none'" in ours
    assert page.count("data-chart") >= 3
    assert len(page) < 3_000_000
    assert ("not private" in page) == (privacy == "none")


def test_class_counts_are_shown_only_when_asked_for_and_marked(run):
    hidden, shown = run(name="hidden"), run("output.counts=true", name="shown")
    assert {p.name for p in shown.iterdir()} == FILES | {"partition.csv", "partition.svg"}
    page = (hidden / "report.html").read_text()
    assert "Who holds what" not in page
    assert "Records by client and class" not in page
    for name in ("partition.json", "config.yaml", "checkpoint.npz"):  # what is not to be shared
        assert f"<li><code>{name}</code>" in page
    page = (shown / "report.html").read_text()
    marked = page.split("<h2>Who holds what</h2>")[1]
    mark = "This is the simulator's knowledge; in a deployment it stays with each owner."
    assert marked.startswith(f'<p class="uncovered">{escape(mark)}</p>')
    assert "Records by client and class" in marked
    assert "<li><code>partition.csv</code>" in page


def test_a_delta_above_one_over_the_records_is_told_once(run, capsys):
    run("privacy.delta=0.005", name="weak")
    told = capsys.readouterr().out
    assert told.count("WEAK PROMISE") == 1
    run(name="strong")
    assert "WEAK PROMISE" not in capsys.readouterr().out


def test_the_heat_map_shows_every_count(run):
    path = run("output.counts=true")
    picture = (path / "partition.svg").read_text()
    counts = strict((path / "partition.json").read_text())["counts"]
    assert picture.count("<rect") == 4 * 3
    for row in counts:
        assert all(f">{count}</text>" in picture for count in row)


def test_a_directory_is_chosen_when_none_is_named(small, tmp_path):
    values = compose([*small, f"output.root={tmp_path}", "rounds=1"])
    first, second = session.run(values).path, session.run(values).path
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", first.parent.name)
    assert first.name == "sofim-npz-eps10-seed0"
    assert second.name == "sofim-npz-eps10-seed0-2"


def test_the_same_config_gives_the_same_model(run):
    np.testing.assert_array_equal(theta_of(run(name="a")), theta_of(run(name="b")))


@pytest.mark.parametrize("overrides", [["rounds=1"], ["partition.clients=1"], ["seed=" + "9" * 40]])
def test_smallest_and_largest(run, overrides):
    path = run(*overrides)
    assert np.isfinite(theta_of(path)).all()


@pytest.mark.parametrize("privacy", ["dp", "none"])
def test_a_run_that_diverges_ends_and_says_so(run, npz, arrays, privacy, capfd):
    np.savez(npz, **{**arrays, "train_y": arrays["train_y"][::-1] // 2})  # cannot be learnt
    path = run("strategy=fedgd", "strategy.lr=1e38", "dataset.classes=3", f"privacy={privacy}")
    summary = strict((path / "summary.json").read_text())
    assert summary["loss"] is None
    assert len(rows_of(path)) == 6
    assert {p.name for p in path.iterdir()} == FILES
    out, err = capfd.readouterr()
    assert "DIVERGED" in out
    assert err == ""


def test_a_tiny_budget_still_runs(run):
    path = run("privacy.epsilon=1e-6")
    assert strict((path / "summary.json").read_text())["epsilon"] <= 1e-6


# Interruptions


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_interrupted_run_resumes_to_the_same_bits(run, strategy, monkeypatch):
    stop, given = 4, [f"strategy={strategy}"]
    given += ["transform.radius=4"] if strategy == "ridge" else []
    whole = run(*given, name="whole")
    measure = session.measure

    def interrupting(experiment, state, G, seconds):
        if state.server.t == stop:
            signal.raise_signal(signal.SIGINT)
        return measure(experiment, state, G, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(session, "measure", interrupting)
        with pytest.raises(Stopped) as stopped:
            run(*given, name="cut")
    cut = whole.parent / "cut"
    assert stopped.value.path == cut
    assert f"Stopped after round {stop} of 6" in str(stopped.value)
    assert f"fedsofim resume {cut}" in str(stopped.value)
    assert len(rows_of(cut)) == stop
    assert not (cut / "summary.json").exists()
    session.resume(cut)
    np.testing.assert_array_equal(theta_of(whole), theta_of(cut))
    timeless = [[{**row, "seconds": 0} for row in rows_of(path)] for path in (whole, cut)]
    assert timeless[0] == timeless[1]
    personal = "accuracy_std" in timeless[0][0]
    own = {"personal.json", "personal.npz"} if personal else {"clients.json"}
    assert {p.name for p in cut.iterdir()} == FILES - {"clients.json"} | own


@pytest.mark.parametrize("at", ["measure", "append", "checkpoint", "finish"])
def test_a_second_interrupt_or_a_crash_anywhere_can_be_resumed(run, at, monkeypatch):
    whole = run("output.checkpoint_every=2", name="whole")
    owner = session.RunDir if at in ("append", "checkpoint") else session
    original, calls = getattr(owner, at), []

    def crash(*arguments, **options):
        calls.append(at)
        if len(calls) == (1 if at == "finish" else 3):
            raise KeyboardInterrupt
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, at, crash)
        with pytest.raises(Stopped, match=r"Continue with: fedsofim resume .*cut$"):
            run("output.checkpoint_every=2", name="cut")
    cut = session.resume(whole.parent / "cut").path
    np.testing.assert_array_equal(theta_of(whole), theta_of(cut))
    assert [row["round"] for row in rows_of(cut)] == [1, 2, 3, 4, 5, 6]


def test_resuming_a_finished_run_changes_nothing(run, monkeypatch):
    path = run()
    later = Mock(now=lambda zone: datetime.now(zone) + timedelta(hours=1))
    monkeypatch.setattr("fedsofim.runs.results.datetime", later)
    before = {name: (path / name).read_bytes() for name in FILES - {"checkpoint.npz", "model.npz"}}
    theta = theta_of(path)
    session.resume(path)
    assert {name: (path / name).read_bytes() for name in before} == before
    np.testing.assert_array_equal(theta, theta_of(path))


def test_a_run_whose_data_changed_is_not_continued(run, npz, arrays):
    path = run()
    np.savez(npz, **{**arrays, "train_x": arrays["train_x"] + 1})
    with pytest.raises(ConfigError, match="has changed since"):
        session.resume(path)


def test_a_run_whose_data_is_gone_is_not_continued(run, npz):
    path = run()
    npz.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        session.resume(path)


def lines_in(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_rows(process, path, count):
    deadline = time.monotonic() + 60
    while lines_in(path / "metrics.jsonl") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


LONG = ["rounds=600", "output.checkpoint_every=7"]


def test_killed_runs_resume_to_the_same_bits(start, run, tmp_path, small):
    whole = run(*LONG, name="whole")
    cut = tmp_path / "cut"
    process = start("run", *small, *LONG, f"output.dir={cut}")
    for rows in (1, 100, 250, 450):
        wait_for_rows(process, cut, rows)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process = start("resume", cut)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    np.testing.assert_array_equal(theta_of(whole), theta_of(cut))
    assert [row["round"] for row in rows_of(cut)] == list(range(1, 601))
    assert {p.name for p in cut.iterdir()} >= FILES


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_stops_and_says_how_to_go_on(start, cli, run, tmp_path, small, number):
    whole = run(*LONG, name="whole")
    cut = tmp_path / "a directory with a long name that does not fit into one line of a terminal"
    process = start("run", *small, *LONG, f"output.dir='{cut}'")
    wait_for_rows(process, cut, 20)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert f"fedsofim resume {cut}" in out
    assert cli("resume", cut).returncode == 0
    np.testing.assert_array_equal(theta_of(whole), theta_of(cut))


@pytest.mark.parametrize("delay", [0.1, 0.5, 0.8])
def test_ctrl_c_at_the_very_beginning_leaves_nothing_or_a_run(start, cli, tmp_path, small, delay):
    path = tmp_path / "early"
    process = start("run", *small, "rounds=200", f"output.dir={path}")
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    leftovers = {p.name for p in tmp_path.iterdir()} - {"small.npz", "early"}
    assert leftovers == set()
    if path.exists():
        assert cli("resume", path).returncode == 0
        assert len(rows_of(path)) == 200


def test_a_second_process_is_refused_by_name_of_the_first(start, cli, run, tmp_path, small):
    path = tmp_path / "mine"
    process = start("run", *small, "rounds=3000", f"output.dir={path}")
    wait_for_rows(process, path, 2)
    second = cli("resume", path)
    assert second.returncode == 2
    (line,) = second.stderr.splitlines()
    host = socket.gethostname()
    assert line == f"fedsofim: {path}: process {process.pid} on {host} is at work there; " + (
        "wait for it, or end it"
    )
    process.kill()
    process.wait()
    assert cli("resume", path).returncode == 0  # who was killed keeps nobody out
    assert not (path / ".running").exists()


def test_a_directory_that_was_removed_ends_the_run(start, tmp_path, small):
    """Else the folder would come again, with files that nothing can go on from."""
    cut = tmp_path / "cut"
    process = start("run", *small, "rounds=1000000", f"output.dir={cut}")
    wait_for_rows(process, cut, 20)
    cut.rename(tmp_path / "away")
    _, err = process.communicate(timeout=60)
    told = f"fedsofim: {cut}: was removed while the run was at work there; start it anew\n"
    assert (process.returncode, err) == (2, told)
    assert not cut.exists()


def test_what_others_said_in_pages_goes_to_a_file_that_the_line_names(run, tmp_path, monkeypatch):
    def failing(experiment, state, on_round):
        error = ConfigError("round 1: 0 good replies, 4 are needed")
        error.details = "page after page"
        raise error

    monkeypatch.setitem(session.ENGINES, "local", failing)
    with pytest.raises(ConfigError) as told:
        run(name="mine")
    file = tmp_path / "mine" / "errors.log"
    assert str(told.value) == f"round 1: 0 good replies, 4 are needed; in full: {file}"
    assert file.read_text() == "page after page"


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, resource.RLIM_INFINITY))
from fedsofim.cli.main import main
main()
"""


def test_a_full_disk_is_told_with_its_file_and_how_to_go_on(run, cli, tmp_path, small, environment):
    """The system lets no file grow beyond some kilobytes, as if there were no space left."""
    many = ["strategy=fedgd", "rounds=120", "output.checkpoint_every=20"]
    words = ["run", *small, *many, "output.dir=mine"]
    command = [sys.executable, "-c", FULL, *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedsofim: mine/metrics.jsonl: File too large; ")
    assert line.endswith("continue with 'fedsofim resume mine'")
    assert cli("resume", "mine").returncode == 0
    again = run(*many, name="again")
    np.testing.assert_array_equal(theta_of(tmp_path / "mine"), theta_of(again))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_no_more_at_any_moment(run, monkeypatch, number):
    """One clear line at each of the moments; and when it takes files again, the same bits."""
    whole, moment, told = run("output.checkpoint_every=2", name="whole"), 0, []
    while not told or told[-1] is not None:
        moment += 1
        name, calls = f"cut{moment}", []

        def refuse(path, calls=calls, moment=moment):
            calls.append(path)
            if len(calls) >= moment:
                raise OSError(number, os.strerror(number), str(path))

        with monkeypatch.context() as patch:
            _before_each_write(patch, refuse)
            try:
                run("output.checkpoint_every=2", name=name)
                told.append(None)
            except (OSError, ConfigError) as error:
                told.append(error)
        path = whole.parent / name
        if path.exists() and told[-1] is not None:
            assert str(path) in str(told[-1])
            assert f"continue with 'fedsofim resume {path}'" in str(told[-1])
            session.resume(path)
        elif told[-1] is not None:
            assert str(told[-1]) == f"output.dir={path}: cannot be written ({os.strerror(number)})"
            run("output.checkpoint_every=2", name=name)
        np.testing.assert_array_equal(theta_of(whole), theta_of(path))
        assert [row["round"] for row in rows_of(path)] == [1, 2, 3, 4, 5, 6]
    assert len(told) > 15


def _before_each_write(patch, refuse):
    """Call `refuse` with the file before anything is written to a run's directory."""
    append, write = session.RunDir.append, session.RunDir.write

    def first(method):
        def wrapped(self, one, other="metrics.jsonl"):
            refuse(self.path / (one if method is write else other))
            return method(self, one, other)

        return wrapped

    patch.setattr(session.RunDir, "append", first(append))
    patch.setattr(session.RunDir, "write", first(write))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "sweep", "tune"])
def test_kills_at_random_moments(name, root, environment):
    """`scripts/kill_and_resume.py` does the same fifty times."""
    command = [sys.executable, str(root / "scripts" / "kill_and_resume.py"), name]
    done = subprocess.run(
        [*command, "--moments", "6", "--seed", "3"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["kills"] == 6
