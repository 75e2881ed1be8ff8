"""What trackers are told, read back by their own readers."""

import json
import sys

import pytest
import yaml

from fedsofim.config.compose import compose, compose_many, shown
from fedsofim.core.errors import ConfigError
from fedsofim.runs import session
from fedsofim.runs.tracking import Tracker
from fedsofim.studies.sweep import Sweep


@pytest.fixture
def run(small, tmp_path):
    def start(track, *more):
        values = compose([*small, "rounds=3", f"track={track}", *more])
        place = session.run(values, tmp_path / "runs" / "mine")
        return place.path, [row["accuracy"] for row in place.metrics()]

    return start


def test_tensorboard_reads_every_round(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path, accuracies = run("tensorboard")
    events = EventAccumulator(str(path / "tensorboard")).Reload()
    told = events.Scalars("accuracy")
    assert [event.step for event in told] == [1, 2, 3]
    assert [event.value for event in told] == pytest.approx(accuracies, rel=1e-6)
    assert not {"seed", "client_accuracy"} & set(events.Tags()["scalars"])


@pytest.mark.slow  # it makes a data base
def test_mlflow_reads_rounds_settings_and_the_end(run, monkeypatch):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    path, accuracies = run("mlflow")
    client = MlflowClient(tracking_uri=f"sqlite:///{path.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedsofim").experiment_id
    (found,) = client.search_runs([experiment])
    history = client.get_metric_history(found.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == list(enumerate(accuracies, 1))
    assert found.data.params["strategy.name"] == "sofim"
    assert not any(k.startswith(("seed", "dataset.path")) for k in found.data.params)
    assert found.info.status == "FINISHED"
    assert found.data.metrics["final.accuracy"] == accuracies[-1]


def test_wandb_keeps_every_round_offline(run, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    path, accuracies = run("wandb")
    (file,) = (path / "wandb").glob("offline-run-*/*.wandb")
    store, told = DataStore(), []
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        items = {i.key or ".".join(i.nested_key): i.value_json for i in record.history.item}
        if "accuracy" in items:
            told.append(json.loads(items["accuracy"]))
    assert told == accuracies


OWN = """
from fedsofim.runs.tracking import Tracker

class Mine(Tracker):
    told = []

    def begin(self, name, config, directory):
        self.told.append(("begin", name, config["strategy.name"]))

    def log(self, step, values):
        self.told.append(("log", step, sorted(values)[0]))

    def end(self, summary):
        self.told.append(("end", "epsilon" in summary))
"""


def test_a_tracker_of_one_s_own_hears_all_and_several_go_together(run, tmp_path, monkeypatch):
    (tmp_path / "mytracker.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    path, _ = run("mytracker:Mine,tensorboard" if _has("tensorboard") else "mytracker:Mine")
    told = sys.modules["mytracker"].Mine.told
    assert told[0] == ("begin", "mine", "sofim")
    assert [entry[1] for entry in told[1:4]] == [1, 2, 3]
    assert told[4:] == [("end", True)]
    session.resume(path, {"rounds": 5, "privacy.epsilon": 12})
    assert [entry[1] for entry in told[6:8]] == [4, 5]


def test_several_trackers_are_one_value_wherever_a_config_is_made():
    given = ["track=tensorboard,wandb"]
    made = [compose(given), *compose_many([given]), yaml.safe_load(shown(given, resolve=False))]
    assert [one["track"] for one in made] == ["tensorboard,wandb"] * 3


def test_of_personal_models_no_score_is_told(run, tmp_path, monkeypatch):
    """Each is scored on its own client's records."""
    text = OWN.replace("sorted(values)[0]", "sorted(values)").replace("begin", "start")
    (tmp_path / "scoreless.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    run("scoreless:Mine", "strategy=pfedsop")
    rounds = [entry for entry in sys.modules["scoreless"].Mine.told if entry[0] == "log"]
    assert len(rounds) == 3
    for _, _, names in rounds:
        assert "seconds" in names
        assert not any("accuracy" in name or "loss" in name for name in names)


def _has(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


@pytest.mark.parametrize(
    ("track", "told"),
    [
        ("tensorbord", "did you mean tensorboard"),
        ("pathlib:Path", "must derive from"),
        ("no.such:Tracker", "there is no module"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(run, tmp_path, track, told):
    with pytest.raises(ConfigError, match=told):
        run(track)
    assert not (tmp_path / "runs").exists()


def test_a_sweep_says_that_it_is_not_tracked(small, tmp_path):
    with pytest.raises(ConfigError, match="a sweep stacks runs"):
        Sweep.begin(tmp_path / "s", [*small, "track=tensorboard"])


def test_the_interface_does_nothing_by_itself(tmp_path):
    Tracker().begin("name", {}, tmp_path)
    Tracker().log(1, {})
    Tracker().end({})
    assert list(tmp_path.iterdir()) == []
