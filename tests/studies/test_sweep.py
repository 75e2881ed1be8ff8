"""Stacks of heads, and the directory of a sweep."""

import csv
import json
import re
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest

from fedsofim.config.compose import compose, compose_many, expand
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines import stacked
from fedsofim.engines.local import run
from fedsofim.runs.evaluation import measure
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies import STRATEGIES
from fedsofim.studies.stacks import run_all
from fedsofim.studies.sweep import Sweep


@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - {"ridge"}))  # it has no rate
def test_a_stack_gives_each_what_it_gets_alone(small, strategy):
    own = {"sofim": "strategy.rho=0.1,10", "adafedprox": "strategy.mu=0,0.5"}.get(
        strategy, "privacy.clip=1,5"
    )
    rates = [] if strategy == "alone" else ["strategy.lr=0.05,0.2"]  # its server takes no step
    combinations = expand([*small, f"strategy={strategy}", "privacy.epsilon=5,10", own, *rates])
    configs = [parse(values) for values in compose_many(combinations)]
    groups = {}
    for config in configs:
        groups.setdefault(stacked.stack_key(config), []).append(config)
    assert max(map(len, groups.values())) > 1
    for group in groups.values():
        base = prepare(group[0])
        experiments = [base._replace(config=c, plan=c.plan()) for c in group]
        together = stacked.run(experiments, lambda *_: None)
        for experiment, state in zip(experiments, together, strict=True):
            alone = run(experiment, begin(experiment), lambda *_: False).server
            np.testing.assert_allclose(state.theta, alone.theta, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("strategy", ["pfedsop", "fedavg_finetune", "ditto", "alone"])
def test_a_stack_of_personal_models_is_scored_as_each_alone(small, strategy):
    overrides = [*small, f"strategy={strategy}", "participation=0.5", "privacy.epsilon=5,10"]
    settings = ["strategy.rho=0.5,2", "strategy.lr=0.3,1"] if strategy == "pfedsop" else []
    configs = [parse(values) for values in compose_many(expand([*overrides, *settings]))]
    for result in run_all(configs, jobs=1, every=3):
        experiment, rows = prepare(configs[result.number]), []
        run(
            experiment,
            begin(experiment),
            lambda state, G, e=experiment, rows=rows: rows.append(measure(e, state, G, 0.0)),
        )
        for row, alone in zip(result.curve, (rows[2], rows[5]), strict=True):
            assert row["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)
            assert row["epsilon"] == experiment.config.epsilon(alone["round"])
            assert row["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-3)
            assert row["noise_norm"] == alone["noise_norm"]


def test_stacks_keep_apart_what_does_not_belong_together(small):
    key = lambda *o: stacked.stack_key(parse(compose([*small, *o])))  # noqa: E731
    assert key("strategy.lr=1") == key("strategy.lr=2") == key("strategy=fedgd")
    for other in ("seed=1", "rounds=5", "aggregation=size", "privacy=none", "partition.clients=3"):
        assert key(other) != key()
    assert key("participation=0.5") != key()
    assert key("backbone.weights=random") != key()
    assert key("features.precision=uint8") != key()


@pytest.mark.parametrize(
    "grid",
    [
        ["strategy=fedfc", "privacy=none"],
        ["transform=oracle", "transform.i_know_this_is_not_private=true", "privacy=none,dp"],
    ],
)
def test_a_stack_with_heads_without_noise(small, grid):
    for result in run_all([parse(v) for v in compose_many(expand([*small, *grid]))], jobs=1):
        experiment = prepare(parse(compose(expand([*small, *grid])[result.number])))
        alone = run(experiment, begin(experiment), lambda *_: False).server
        np.testing.assert_allclose(result.theta, alone.theta, rtol=2e-3, atol=2e-4)


def test_composing_many_equals_composing_each():
    combinations = expand(
        ["strategy=sofim,scaffold", "privacy.epsilon=0.5,5", "strategy.lr=0.3", "seed=0,1"]
    )
    assert len(combinations) == 8
    assert list(compose_many(combinations)) == [compose(o) for o in combinations]


def test_processes_give_what_one_gives(small):
    configs = [parse(v) for v in compose_many(expand([*small, "seed=0,1", "strategy.lr=0.1,1"]))]
    one = {r.number: r for r in run_all(configs, jobs=1)}
    two = {r.number: r for r in run_all(configs, jobs=2)}
    assert one.keys() == two.keys() == set(range(4))
    for number, result in one.items():
        np.testing.assert_allclose(result.theta, two[number].theta, rtol=1e-5, atol=1e-6)
        assert [row["round"] for row in result.curve] == [6]


def test_an_interrupted_sweep_continues_to_the_same_tables(small, tmp_path):
    overrides = [*small, "strategy.lr=0.1,0.2,0.3", "seed=0,1"]
    whole = Sweep.begin(tmp_path / "whole", overrides).run(1, lambda *_: None)
    Sweep.begin(tmp_path / "cut", overrides).run(1, lambda *_: None)
    results = tmp_path / "cut" / "results.jsonl"
    lines = results.read_text().splitlines()
    results.write_text("\n".join(lines[:2]) + "\n" + lines[2][:10])  # killed while writing
    for name in ("results.csv", "results.parquet"):
        (tmp_path / "cut" / name).unlink()
    shown = []
    rows = Sweep.begin(tmp_path / "cut", overrides).run(1, lambda done, total: shown.append(done))
    assert shown[0] == 2  # what was done is not done again
    assert shown[-1] == 6
    rounded = ("loss", "calibration_error")  # a stack of another size blocks its products otherwise
    strip = lambda row: {k: v for k, v in row.items() if k not in rounded}  # noqa: E731
    assert [strip(row) for row in rows] == [strip(row) for row in whole]
    table = list(csv.DictReader((tmp_path / "cut" / "results.csv").open()))
    parquet = pyarrow.parquet.read_table(tmp_path / "cut" / "results.parquet").to_pylist()
    assert [float(row["accuracy"]) for row in table] == [row["accuracy"] for row in parquet]


def test_a_directory_takes_one_sweep_only(small, tmp_path):
    Sweep.begin(tmp_path / "s", [*small, "seed=0"])
    with pytest.raises(ConfigError, match="another sweep"):
        Sweep.begin(tmp_path / "s", [*small, "seed=1"])
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        Sweep.begin(tmp_path / "x", [*small, "seed=1"])


def test_a_mistake_that_is_told_before_anything_is_done_does_not_take_the_directory(
    small, tmp_path
):
    missing = [*small, "dataset=npz", "dataset.path=/nowhere.npz"]
    with pytest.raises(ConfigError, match="no such file"):
        Sweep.begin(tmp_path / "s", missing).run(1, lambda *_: None)
    Sweep.begin(tmp_path / "s", [*small, "seed=0"]).run(1, lambda *_: None)
    with pytest.raises(ConfigError, match="another sweep"):
        Sweep.begin(tmp_path / "s", missing)


def test_a_line_that_was_cut_costs_that_result_only(small, tmp_path):
    overrides = [*small, "seed=0,1,2"]
    Sweep.begin(tmp_path / "s", overrides).run(1, lambda *_: None)
    file = tmp_path / "s" / "results.jsonl"
    file.write_text(file.read_text()[:-40])
    Sweep.begin(tmp_path / "s", overrides).run(1, lambda *_: None)
    assert set(Sweep.open(tmp_path / "s").finished()) == {0, 1, 2}


def test_a_mistake_leaves_no_directory(small, tmp_path):
    for wrong in ("strategy.lr=-1,1", "engine=ray", "seed=0,x"):
        with pytest.raises(ConfigError):
            Sweep.begin(tmp_path / "s", [*small, wrong])
        assert not (tmp_path / "s").exists()


def test_a_column_of_numbers_and_words_can_be_written(small, tmp_path):
    Sweep.begin(tmp_path / "s", [*small, "privacy.noise_multiplier=null,3"]).run(1, lambda *_: None)
    table = pyarrow.parquet.read_table(tmp_path / "s" / "results.parquet").to_pydict()
    assert table["privacy.noise_multiplier"] == ["null", "3.0"]


def test_the_command_line_sweeps_and_reports(small, tmp_path):
    def fedsofim(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "fedsofim", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )

    done = fedsofim("sweep", *small, "strategy.lr=0.1,0.2", "output.dir=s")
    assert done.returncode == 0, done.stderr
    assert re.search(r"2 configurations in", done.stdout)
    assert len(list(csv.DictReader((tmp_path / "s" / "results.csv").open()))) == 2
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())[-1] == "strategy.lr=0.1,0.2"
    assert fedsofim("report", "s").returncode == 0
    assert "<svg" in (tmp_path / "report.html").read_text()
    for wrong in (
        ("sweep", "nonsense.key=1,2"),
        ("reproduce", "table99"),
        ("tune", "strategy=nothing"),
        ("tune", "strategy=fedgd", "privacy.epsilon=abc"),
        ("tune", "strategy=fedgd", "rounds=5"),
        ("tune", "strategy=fedgd", "partition.alpha=0.1,1"),
        ("run", "dataset=owners", "dataset.classes=3"),
        ("report", "nowhere"),
        ("sweep", "--jobs", "many"),
    ):
        failed = fedsofim(*wrong)
        assert failed.returncode == 2, (wrong, failed.stderr)
        assert len(failed.stderr.strip().splitlines()) == 1
