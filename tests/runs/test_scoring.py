"""What a finished run tells of its model, whatever engine trained it."""

import json

import numpy as np
import pytest
from references import reference

from fedsofim.config.compose import compose, compose_many, expand
from fedsofim.config.schema import parse
from fedsofim.runs import session
from fedsofim.runs.evaluation import final_models, measure
from fedsofim.runs.experiment import begin, prepare
from fedsofim.runs.scoring import own_tests, score
from fedsofim.studies.stacks import run_all

metrics = reference("sklearn.metrics")
KEYS = ("balanced_accuracy", "auc", "calibration_error")


@pytest.fixture
def run(tmp_path, small):
    def start(*overrides, name="run"):
        return session.run(compose([*small, *overrides]), tmp_path / name).path

    return start


def content(path, name):
    return json.loads((path / name).read_text())


def test_the_summary_is_what_scikit_learn_says_of_the_model(run, arrays):
    path = run()
    summary, scores = content(path, "summary.json"), content(path, "scores.json")
    theta = np.load(path / "model.npz")["theta"].astype(np.float64)
    z = arrays["test_x"] @ theta[:, :-1].T + theta[:, -1]
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    y, predicted = arrays["test_y"], z.argmax(axis=1)
    balanced = metrics.balanced_accuracy_score(y, predicted)
    assert summary["balanced_accuracy"] == pytest.approx(balanced)
    area = metrics.roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert summary["auc"] == pytest.approx(area)
    recalls = metrics.recall_score(y, predicted, average=None)
    assert [row["accuracy"] for row in scores["classes"]] == pytest.approx(list(recalls))
    assert sum(row["records"] for row in scores["calibration"]) == len(y)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["balanced_accuracy"] == summary["balanced_accuracy"]
    assert rows[-1]["calibration_error"] == summary["calibration_error"]
    page = (path / "report.html").read_text()
    assert "Balanced accuracy" in page
    assert "Accuracy by class" in page


def test_each_client_is_scored_on_its_own_classes(run):
    path = run("partition=classes", "partition.classes_per_client=1", "privacy=none")
    counts = content(path, "partition.json")["counts"]
    classes = {row["class"]: row["accuracy"] for row in content(path, "scores.json")["classes"]}
    rows = content(path, "clients.json")
    assert [row["client"] for row in rows] == list(range(4))
    for row in rows:  # who holds one class has that class's accuracy
        (held,) = np.flatnonzero(counts[row["client"]])
        assert row["accuracy"] == pytest.approx(classes[held])
    summary = content(path, "summary.json")
    accuracies = [row["accuracy"] for row in rows]
    assert summary["client_accuracy"] == pytest.approx(np.mean(accuracies))
    assert summary["client_accuracy_worst_decile"] == min(accuracies)


@pytest.mark.parametrize("strategy", ["sofim", "pfedsop"])
def test_a_sweep_tells_of_its_last_rounds_what_runs_tell(small, tmp_path, strategy):
    overrides = [*small, f"strategy={strategy}", "privacy.epsilon=5,10"]
    configs = list(compose_many(expand(overrides)))
    for result in run_all([parse(one) for one in configs], jobs=1, every=3):
        path = session.run(configs[result.number], tmp_path / str(result.number)).path
        summary, last = content(path, "summary.json"), result.curve[-1]
        for key in KEYS:
            assert last[key] == pytest.approx(summary[key], abs=0.01)
        if strategy == "sofim":
            assert last["client_accuracy"] == pytest.approx(summary["client_accuracy"], abs=0.01)
        worst = summary.get("client_accuracy_worst_decile", summary.get("accuracy_worst_decile"))
        assert last["client_accuracy_worst_decile"] == pytest.approx(worst, abs=0.02)
        assert result.curve[0]["auc"] is None


def test_what_epsilon_covers_holds_no_client_s_score(run):
    path = run("privacy.noise=exact", "rounds=2")
    assert "client_accuracy" not in content(path, "summary.json")
    page = (path / "report.html").read_text()
    assert "By client" not in page
    assert "<li><code>clients.json</code>" in page
    assert len(content(path, "clients.json")) == 4
    shown = run("rounds=2", name="seeded") / "report.html"
    assert "By client" in shown.read_text()


def test_a_deployment_tells_nothing_of_single_clients(config_of, small):
    experiment = prepare(config_of(*small))
    public = {k: v for k, v in experiment.partition.items() if k != "counts"}
    deployed = experiment._replace(partition=public, clients=[], deployed=True)
    final = score(deployed, experiment.theta)
    assert own_tests(deployed) == {}
    assert final.clients == []
    assert not any("client" in key for key in final.summary())
    assert {"balanced_accuracy", "auc"} <= final.summary().keys()


def test_without_a_test_set_there_are_no_scores(config_of, small):
    experiment = prepare(config_of(*small))
    none = experiment._replace(test=experiment.test.part(slice(0, 0)))
    assert score(none, experiment.theta) is None
    row = measure(none, begin(none), None, 0.0)
    assert row["accuracy"] is None


def test_a_run_that_diverged_is_written(run):
    path = run("strategy=fedgd", "strategy.lr=1e300", "privacy=none")
    summary = content(path, "summary.json")
    assert summary["loss"] is None
    assert summary["auc"] is None


def test_personal_models_are_scored_together(config_of, small):
    experiment = prepare(config_of(*small, "strategy=pfedsop"))
    models = final_models(experiment, begin(experiment))
    final = score(experiment, models)
    assert final.seen.records.sum() == sum(own.size for own in experiment.own_tests)
    assert final.clients == []  # personal.json has them
