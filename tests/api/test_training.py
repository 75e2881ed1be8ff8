"""Runs from Python: the same as from the command line, and nothing left behind."""

import importlib
import json
import math
import signal
import subprocess
import sys

import numpy as np
import pytest

import fedsofim
from fedsofim.config.compose import compose
from fedsofim.core.errors import ConfigError, Stopped
from fedsofim.runs import session
from fedsofim.runs.observer import Observer

FEW = {"clients": 4, "rounds": 6, "settings": "published"}


@pytest.fixture
def parts(arrays):
    return arrays["train_x"], arrays["train_y"], arrays["test_x"], arrays["test_y"]


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """Where anything that is written would be seen."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_ten_lines_in_a_notebook(parts, empty):
    X, y, X_test, y_test = parts
    history = fedsofim.run(
        strategy="sofim", data=(X, y, X_test, y_test), clients=4, epsilon=10, rounds=30
    )
    assert history.accuracy.shape == history.epsilon.shape == history.loss.shape == (30,)
    assert history.final_epsilon == history.epsilon[-1] <= 10
    assert history.final_accuracy == history.accuracy[-1] == history.model.score(X_test, y_test)
    assert history.final_loss == history.loss[-1]
    assert history.model.predict(X_test).shape == y_test.shape
    assert history.path is None
    assert history.finished
    assert list(empty.iterdir()) == []
    frame = history.frame()
    assert frame.index.tolist() == list(range(1, 31))
    np.testing.assert_array_equal(frame["epsilon"], history.epsilon)
    axes = history.plot()
    line = axes.lines[0]
    np.testing.assert_allclose(line.get_ydata(), 100 * history.accuracy)
    assert history.plot(axes) is axes
    assert "sofim on arrays: 30 rounds" in repr(history)


@pytest.mark.parametrize("strategy", ["sofim", "fedfc", "pfedsop"])
def test_arrays_give_the_parameters_of_the_command_line(parts, small, strategy, tmp_path):
    values = compose([*small, f"strategy={strategy}", f"output.dir={tmp_path / 'cli'}"])
    place = session.run(values)
    with np.load(place.path / "model.npz") as saved:
        theta = saved["theta"]
    written = fedsofim.run(data=parts, strategy=strategy, output=tmp_path / "py", **FEW)
    quiet = fedsofim.run(data=parts, strategy=strategy, **FEW)
    for history in (written, quiet, fedsofim.load(place.path)):
        np.testing.assert_array_equal(history.model.theta, theta)
        assert history.epsilon.tolist() == [row["epsilon"] for row in place.metrics()]
        assert history.accuracy.tolist() == [row["accuracy"] for row in place.metrics()]
        same = ("accuracy", "epsilon", "noise_std", "releases")
        assert [history.summary[k] for k in same] == [
            place.read_json("summary.json")[k] for k in same
        ]
        assert len(history.personal) == (4 if strategy == "pfedsop" else 0)
    for ours, theirs in zip(written.personal, quiet.personal, strict=True):
        np.testing.assert_array_equal(ours.theta, theirs.theta)


def test_a_data_set_by_name_and_settings_by_name(npz):
    history = fedsofim.run(
        {"dataset": {"name": "npz", "path": str(npz)}, "strategy.lr": 0.3}, privacy="none", **FEW
    )
    assert history.config["strategy.lr"] == 0.3
    assert np.isinf(history.epsilon).all()
    assert "not private" in repr(history)
    assert history.model.classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "names",
    [np.array(["ape", "bee", "cat"]), np.array([-7, 30, 31]), np.array(["c", "d", "e"], object)],
)
def test_labels_are_what_the_user_calls_them(parts, names, tmp_path):
    X, y, X_test, y_test = parts
    plain = fedsofim.run(data=parts, **FEW)
    data = X, names[y], X_test, names[y_test]
    for output in (None, tmp_path / "named"):
        history = fedsofim.run(data=data, output=output, **FEW)
        np.testing.assert_array_equal(history.model.theta, plain.model.theta)
        assert history.model.classes_.tolist() == names.tolist()
        predicted = history.model.predict(X_test)
        np.testing.assert_array_equal(predicted, names[plain.model.predict(X_test)])
        assert history.model.score(X_test, names[y_test]) == history.final_accuracy


def test_truth_values_are_labels(parts):
    X, y, X_test, y_test = parts
    history = fedsofim.run(data=(X, y > 0, X_test, y_test > 0), **FEW)
    assert history.model.classes_.tolist() == [False, True]
    assert history.model.predict(X_test).dtype == bool


@pytest.mark.parametrize("strategy", ["sofim", "pfedsop"])
def test_without_test_data_there_is_no_score(parts, strategy, tmp_path):
    history = fedsofim.run(data=parts[:2], strategy=strategy, output=tmp_path / "r", **FEW)
    assert np.isnan(history.accuracy).all()
    assert math.isnan(history.final_accuracy)
    assert history.summary["accuracy"] is None
    assert "accuracy" not in repr(history)
    np.testing.assert_array_equal(
        history.model.theta, fedsofim.run(data=parts, strategy=strategy, **FEW).model.theta
    )


def test_a_part_may_be_held_out(parts):
    history = fedsofim.run(data=parts, holdout=0.25, **FEW)
    assert history.summary["rounds"] == 6
    assert not np.array_equal(
        history.model.theta, fedsofim.run(data=parts, **FEW).model.theta
    )  # it trained on fewer


def test_owners_divide_the_records(parts, tmp_path):
    owners = np.array(["b", "a", "c"])[np.arange(240) % 3]
    history = fedsofim.run(data=parts, owners=owners, rounds=2, output=tmp_path / "r")
    about = json.loads((history.path / "partition.json").read_text())
    assert about["sizes"] == [80, 80, 80]
    assert history.config["clients"] == 3
    fedsofim.resume(history.path, data=parts, owners=owners, rounds=4, epsilon=20)
    with pytest.raises(ConfigError, match="has changed since"):
        fedsofim.resume(history.path, data=parts, owners=owners[::-1])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (lambda X, y: (X,), "data: give"),
        (lambda X, y: X, "data: give"),
        (lambda X, y: (X[:-1], y), "X: 239 records, 240 labels"),
        (lambda X, y: (X[:, 0], y), "X: has shape"),
        (lambda X, y: (X * np.nan, y), "X: NaN or infinite values in 240 records"),
        (lambda X, y: (X.astype(float) * 1e300, y), "X: NaN or infinite values"),
        (lambda X, y: (X, y, X[:, 1:], y), "X_test: records have shape"),
        (lambda X, y: (X, y * 0), "at least two classes"),
        (lambda X, y: (X, y + 0.5), "y: holds float64; give whole numbers or texts"),
        (lambda X, y: (X, y.astype(str), X, y), "y_test: holds int64"),
        (lambda X, y: (X[:0], y[:0]), "X: there are no records"),
        (lambda X, y: ([["a"]], [1]), "X: not an array of numbers"),
    ],
)
def test_bad_arrays_are_told_in_one_line(arrays, data, told):
    with pytest.raises(ConfigError, match=told) as error:
        fedsofim.run(data=data(arrays["train_x"], arrays["train_y"]), **FEW)
    assert "\n" not in str(error.value)


def test_a_class_of_ones_own_is_taken(parts, monkeypatch, root, tmp_path):
    monkeypatch.syspath_prepend(root / "examples")
    own = importlib.import_module("strategy").SignDescent
    histories = [
        fedsofim.run(data=parts, strategy=own, lr=0.02, output=tmp_path / "own", **FEW),
        fedsofim.run(data=parts, strategy="strategy:SignDescent", lr=0.02, **FEW),
        fedsofim.run({"strategy": {"name": own, "lr": 0.02}}, data=parts, **FEW),
        fedsofim.load(tmp_path / "own"),
    ]
    first = histories[0].model.theta
    for history in histories:
        np.testing.assert_array_equal(history.model.theta, first)
    other = fedsofim.run(data=parts, strategy="fedgd", lr=0.02, **FEW)
    assert not np.array_equal(other.model.theta, first)


def test_data_come_from_one_place(parts, npz, tmp_path):
    with pytest.raises(ConfigError, match="data, dataset: give one of them"):
        fedsofim.run(data=parts, dataset="cifar10", **FEW)
    settings = {"dataset": "npz", "dataset.path": str(npz)}
    path = fedsofim.run(settings, output=tmp_path / "r", **FEW).path
    with pytest.raises(ConfigError, match="trained on dataset=npz, not on arrays"):
        fedsofim.resume(path, data=parts)


def test_other_engines_take_files(parts):
    with pytest.raises(ConfigError, match="engine=ray: data in memory needs engine=local"):
        fedsofim.run(data=parts, engine="ray", **FEW)


class Stopping(Observer):
    """Asks to stop after a round."""

    def __init__(self, at):
        self.at, self.heard = at, []

    def announce(self, experiment, epsilon, done):
        self.heard.append(("announce", done))

    def round(self, row):
        self.heard.append(row["round"])
        if row["round"] == self.at:
            signal.raise_signal(signal.SIGINT)

    def result(self, summary, rows, path):
        self.heard.append("result")

    def close(self):
        self.heard.append("close")


def test_a_stopped_run_is_read_and_continued(parts, tmp_path):
    X, y, X_test, y_test = parts
    names = np.array(["x", "y", "z"])
    data = X, names[y], X_test, names[y_test]
    whole = fedsofim.run(data=data, **FEW)
    path, observer = tmp_path / "cut", Stopping(4)
    with pytest.raises(Stopped) as stopped:
        fedsofim.run(data=data, output=path, progress=observer, **FEW)
    assert stopped.value.path == path
    assert observer.heard == [("announce", 0), 1, 2, 3, 4, "close"]
    half = fedsofim.load(path)
    assert not half.finished
    assert half.summary == {}
    assert len(half) == 4
    assert half.model.classes_.tolist() == ["x", "y", "z"]
    np.testing.assert_array_equal(half.accuracy, whole.accuracy[:4])
    observer = Stopping(None)
    done = fedsofim.resume(path, data=data, progress=observer)
    assert observer.heard == [("announce", 4), 5, 6, "result", "close"]
    np.testing.assert_array_equal(done.model.theta, whole.model.theta)
    np.testing.assert_array_equal(done.epsilon, whole.epsilon)
    assert done.summary["accuracy"] == whole.summary["accuracy"]


def test_a_stopped_run_in_memory_says_that_it_is_lost(parts):
    with pytest.raises(
        Stopped, match=r"Stopped after round 2 of 6\. It was not written"
    ) as stopped:
        fedsofim.run(data=parts, progress=Stopping(2), **FEW)
    assert stopped.value.path is None
    assert "It was not written" in str(stopped.value)


def test_other_arrays_are_not_continued_with(parts, tmp_path):
    X, y, X_test, y_test = parts
    path = fedsofim.run(data=parts, output=tmp_path / "r", **FEW).path
    for other in ((X + 1, y, X_test, y_test), (X, y[::-1], X_test, y_test), (X, y)):
        with pytest.raises(ConfigError, match="has changed since"):
            fedsofim.resume(path, data=other)
    with pytest.raises(ConfigError, match=r"fedsofim.resume\(DIR, data="):
        fedsofim.resume(path)
    with pytest.raises(ConfigError, match="not among the classes"):
        fedsofim.resume(path, data=(X, y + 5, X_test, y_test))


def test_a_run_is_extended_from_python_as_from_the_command_line(parts, tmp_path, small, inside):
    path = fedsofim.run(data=parts, output=tmp_path / "py", **FEW).path
    longer = fedsofim.resume(path, data=parts, rounds=12, epsilon=12)
    assert longer.final_epsilon == pytest.approx(12, rel=1e-6)
    assert len(longer) == 12
    assert (np.diff(longer.epsilon) > 0).all()
    assert "rounds 7 to 12" in longer.summary["phases"]
    assert inside("run", *small, "output.dir=cli").returncode == 0
    refused = inside("resume", "cli", "rounds=12")
    assert refused.returncode == 2
    assert "nothing is left" in refused.stderr
    assert inside("resume", "cli", "rounds=12", "privacy.epsilon=12").returncode == 0
    other = fedsofim.load(tmp_path / "cli")
    np.testing.assert_array_equal(other.model.theta, longer.model.theta)
    np.testing.assert_array_equal(other.epsilon, longer.epsilon)


def test_an_output_that_exists_is_not_touched(parts, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    with pytest.raises(ConfigError, match="exists already"):
        fedsofim.run(data=parts, output=tmp_path / "mine", **FEW)
    assert (tmp_path / "mine" / "file").read_text() == "precious"


def test_loading_what_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="not a run directory"):
        fedsofim.load(tmp_path)


def test_missing_libraries_are_told(parts, monkeypatch):
    history = fedsofim.run(data=parts, **FEW)
    for name, call in (("pandas", history.frame), ("matplotlib", history.plot)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=f"needs {name}; pip install {name}"):
            call()


def test_progress_is_told_where_somebody_looks_on(parts, capsys):
    fedsofim.run(data=parts, **FEW)
    assert capsys.readouterr().out == ""
    fedsofim.run(data=parts, progress=False, **FEW)
    assert capsys.readouterr().out == ""
    fedsofim.run(data=parts, progress=True, **FEW)
    out = capsys.readouterr().out
    assert "sofim on arrays: 4 clients" in out
    assert "round 6 of 6" in out


def test_importing_takes_nothing_with_it(environment):
    code = (
        "import sys, fedsofim; fedsofim.__version__; "
        "assert {'run', 'History'} <= set(dir(fedsofim)); "
        "print(sorted({'numpy', 'hydra', 'yaml', 'rich', 'fedsofim.api'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        _ = fedsofim.rum


def test_automatic_settings_know_how_much_data_there_is(rng):
    y = rng.integers(3, size=3000)
    X = 5 + np.eye(3)[y] + 0.2 * rng.normal(size=(3000, 3))
    given = {"settings": "auto", "clients": 5, "epsilon": 5, "transform.radius": 10}
    history = fedsofim.run(data=(X[:2500], y[:2500], X[2500:], y[2500:]), **given)
    assert "2,500 records, 3 features, 3 classes" in history.config["note"]
    assert history.final_accuracy > 0.9
    assert history.model.score(X[2500:], y[2500:]) == pytest.approx(history.final_accuracy)
