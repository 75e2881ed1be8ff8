import json
import math
import os

import numpy as np
import pytest
import yaml

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.runs.directory import RunDir
from fedsofim.runs.experiment import begin, prepare


@pytest.fixture
def experiment(small):
    return prepare(parse(compose(small)))


@pytest.fixture
def place(tmp_path, experiment, small):
    return RunDir.create(tmp_path / "run", compose(small), experiment.partition, begin(experiment))


def test_a_new_directory_can_be_opened_and_restored(place, experiment, small):
    opened = RunDir.open(place.path)
    assert opened.config() == compose(small)
    assert opened.read_json("partition.json") == experiment.partition
    assert opened.metrics() == []
    state = opened.restore(begin(experiment))
    np.testing.assert_array_equal(state.server.theta, experiment.theta)
    assert state.server.t == 0
    assert type(state.server.t) is int


def test_nothing_but_the_directory_appears(place, tmp_path):
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "small.npz"]
    assert not [p for p in place.path.iterdir() if p.name.startswith(".")]


def test_an_empty_directory_may_be_used_and_no_other(tmp_path, experiment, small):
    arguments = compose(small), experiment.partition, begin(experiment)
    (tmp_path / "empty").mkdir()
    RunDir.create(tmp_path / "empty", *arguments)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for taken in ("empty", "full", "file"):
        with pytest.raises(ConfigError, match="exists already"):
            RunDir.create(tmp_path / taken, *arguments)
    assert (tmp_path / "full" / "mine").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "precious"
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["empty", "file", "full", "small.npz"]


def test_a_place_that_cannot_be_written_is_told(tmp_path, experiment, small):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        RunDir.create(
            tmp_path / "file" / "run", compose(small), experiment.partition, begin(experiment)
        )


def test_a_failing_write_leaves_the_old_file(place, monkeypatch):
    before = (place.path / "partition.json").read_bytes()

    def full(*arguments):
        raise OSError("no space left on device")

    for function in ("os.replace", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(function, full)
            with pytest.raises(OSError, match="no space"):
                place.write_json("partition.json", {})
        assert (place.path / "partition.json").read_bytes() == before


def test_a_written_file_is_on_disk_with_its_name(place, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    place.write_json("partition.json", {})
    assert synced == [path.stat().st_ino for path in (place.path / "partition.json", place.path)]


def test_json_holds_no_infinity(place):
    for value in (math.inf, math.nan):
        with pytest.raises(ValueError, match="not JSON compliant"):
            place.write_json("summary.json", {"x": value})
        with pytest.raises(ValueError, match="not JSON compliant"):
            place.append({"round": 1, "loss": value})
    assert place.metrics() == []


def test_rows_beyond_the_checkpoint_are_dropped(place):
    for t in range(1, 6):
        place.append({"round": t, "seconds": 0.1 * t})
    with open(place.path / "metrics.jsonl", "a") as file:
        file.write('{"round": 6, "sec')  # cut short by a crash
    assert [row["round"] for row in place.metrics()] == [1, 2, 3, 4, 5]
    place.rewind(3)
    assert [row["round"] for row in place.metrics()] == [1, 2, 3]
    assert (place.path / "metrics.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize("content", ["", '{"round": 2}\n', "nonsense\n", '{"other": 1}\n'])
def test_metrics_that_do_not_fit_the_checkpoint_are_told(place, content):
    (place.path / "metrics.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: damaged"):
        place.rewind(2)
    assert (place.path / "metrics.jsonl").read_text() == content


@pytest.mark.parametrize("content", [b"", b"PK", b"nonsense", None])
def test_a_damaged_checkpoint_is_told(place, experiment, content):
    file = place.path / "checkpoint.npz"
    file.write_bytes(file.read_bytes()[:-300] if content is None else content)
    with pytest.raises(ConfigError, match=r"checkpoint\.npz: does not fit this run, or is damaged"):
        place.restore(begin(experiment))


def test_a_checkpoint_of_another_shape_is_told(place, small):
    other = prepare(parse(compose([*small, "dataset.classes=5"])))
    with pytest.raises(ConfigError, match="does not fit this run"):
        place.restore(begin(other))


@pytest.mark.parametrize(
    "missing", ["config.yaml", "checkpoint.npz", "metrics.jsonl", "partition.json"]
)
def test_a_directory_that_is_not_a_run_is_told(place, missing):
    (place.path / missing).unlink()
    with pytest.raises(ConfigError, match=f"not a run directory .it has no {missing}"):
        RunDir.open(place.path)


@pytest.mark.parametrize("content", ["[1, 2]", "a: [", "", "plain text"])
def test_a_damaged_config_is_told(place, content):
    (place.path / "config.yaml").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.yaml: not a config"):
        place.config()


def test_a_config_comes_back_as_it_was(tmp_path, experiment, small):
    values = compose([*small, "privacy=none", "seed=123456789012345678901234567890"])
    place = RunDir.create(tmp_path / "r", values, experiment.partition, begin(experiment))
    assert place.config() == values
    assert yaml.safe_load((place.path / "config.yaml").read_text()) == values
    assert json.loads((place.path / "partition.json").read_text())["clients"] == 4
