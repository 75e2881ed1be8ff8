"""Calibration and sweeps from Python."""

import json

import numpy as np
import pytest

import fedsofim
from fedsofim.core.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "overrides"),
    [
        ({"epsilon": 10, "rounds": 70}, ["privacy.epsilon=10", "rounds=70"]),
        ({"noise_multiplier": 8.4}, ["privacy.noise_multiplier=8.4"]),
        ({"strategy": "fedfc", "epsilon": 1}, ["strategy=fedfc", "privacy.epsilon=1"]),
        ({"trust": "aggregate", "aggregation": "size"}, ["privacy.trust=aggregate",
                                                         "aggregation=size"]),
    ],
)  # fmt: skip
def test_calibrate_gives_the_command_line_s_values(inside, settings, overrides):
    told = json.loads(inside("calibrate", *overrides, "--json").stdout)
    assert fedsofim.calibrate(**settings)._asdict() == told


def test_calibrate_tells_mistakes():
    with pytest.raises(ConfigError, match="a run without privacy needs no noise"):
        fedsofim.calibrate(privacy="none")
    with pytest.raises(ConfigError, match="did you mean epsilon"):
        fedsofim.calibrate(epsilonn=1)


def test_a_sweep_gives_each_runs_own_result(arrays, tmp_path):
    X, y, X_test, y_test = (arrays[k] for k in ("train_x", "train_y", "test_x", "test_y"))
    names = np.array(["a", "b", "c"])
    data = X, names[y], X_test, names[y_test]
    few = {"clients": 4, "rounds": 12, "strategy": "fedgd"}
    result = fedsofim.sweep(data=data, lr=[0.1, 1.0], seed=[0, 1], progress=False, **few)
    frame = result.frame()
    assert len(result) == len(frame) == 8  # rounds 10 and 12 of four configurations
    assert result.varied == ["strategy.lr", "seed"]
    assert "dataset.path" not in frame.columns
    for lr in (0.1, 1.0):
        for seed in (0, 1):
            alone = fedsofim.run(data=data, lr=lr, seed=seed, **few)
            chosen = (frame["strategy.lr"] == lr) & (frame["seed"] == seed)
            last = frame[chosen & (frame["round"] == 12)].iloc[0]
            assert last["accuracy"] == pytest.approx(alone.final_accuracy, abs=1e-6)
            assert last["loss"] == pytest.approx(alone.final_loss, rel=1e-3)
            assert last["epsilon"] == alone.final_epsilon
    last = frame[frame["round"] == 12].groupby("strategy.lr")["accuracy"].mean()
    best = result.best()
    assert best["accuracy"] == pytest.approx(last.max())
    assert last[best["strategy.lr"]] == last.max()


def test_a_sweep_may_be_kept_and_goes_on(npz, tmp_path):
    settings = {"dataset": "npz", "dataset.path": str(npz), "clients": 4, "rounds": 2}
    result = fedsofim.sweep(settings, seed=[0, 1], output=tmp_path / "s", progress=False)
    assert result.path == tmp_path / "s"
    assert (tmp_path / "s" / "results.csv").is_file()
    again = fedsofim.sweep(settings, seed=[0, 1], output=tmp_path / "s", progress=False)
    assert again.rows == result.rows


def test_a_sweep_tells_mistakes(arrays):
    with pytest.raises(ConfigError, match="a sweep compares scores"):
        fedsofim.sweep(data=(arrays["train_x"], arrays["train_y"]), seed=[0, 1])
    with pytest.raises(ConfigError, match="stands for nothing"):
        fedsofim.sweep(seed=[])
    with pytest.raises(ConfigError, match="did you mean rounds"):
        fedsofim.sweep(roundz=[1, 2])
