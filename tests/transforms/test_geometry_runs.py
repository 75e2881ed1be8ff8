"""Whole runs on mapped records: every method, every engine, and what is charged."""

import json

import numpy as np
import pytest

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines.local import run
from fedsofim.engines.stacked import run as run_stacked
from fedsofim.engines.stacked import stack_key
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir
from fedsofim.runs.evaluation import measure, personal_models
from fedsofim.runs.experiment import begin, prepare
from fedsofim.runs.record import Record
from fedsofim.strategies import STRATEGIES

PRIVATE = ("transform=private", "transform.radius=4")
SILENT = {"alone"}


def ready(*overrides):
    return prepare(parse(compose(overrides)))


def trained(*overrides):
    e = ready(*overrides)
    return e, run(e, begin(e), lambda *_: False)


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - SILENT))
def test_every_method_trains_on_mapped_records(small, strategy):
    """Shifted features, which no linear rule learns as they are, are learned once centred."""
    e, final = trained(*small, f"strategy={strategy}", *PRIVATE, "privacy.epsilon=1e3")
    assert final.server.t == 6
    assert not np.array_equal(final.server.shared.P, np.eye(6))
    if e.config.client.keeps_models:
        assert np.isfinite(personal_models(e, final)).all()


def test_a_silent_method_has_nothing_to_set_up(small):
    with pytest.raises(ConfigError, match="sends nothing"):
        parse(compose([*small, "strategy=alone", *PRIVATE]))


def test_a_network_has_no_features_to_map(small):
    with pytest.raises(ConfigError, match="needs model=head"):
        parse(compose([*small, "model=mlp", *PRIVATE]))


def test_what_is_written_is_a_model_for_raw_features(small, tmp_path):
    place = session.run(compose([*small, *PRIVATE, f"output.dir={tmp_path / 'run'}"]))
    theta = np.load(place.path / "model.npz")["theta"]
    np.testing.assert_array_equal(place.parameters()[0], theta)
    e = ready(*small)
    assert e.test.evaluate(theta)[0] == place.metrics()[-1]["accuracy"]
    summary = json.loads((place.path / "summary.json").read_text())
    assert summary["epsilon"] == pytest.approx(10, rel=1e-6)
    assert summary["releases"] == 6


@pytest.mark.parametrize("stop", [-1, 0, 2])
def test_a_run_that_stopped_between_stages_goes_on_to_the_same_end(small, tmp_path, stop):
    e = ready(*small, "strategy=fedfc", *PRIVATE)
    whole = run(e, begin(e), lambda *_: False)
    half = run(e, begin(e), lambda now, G, **_: now.server.t == stop)
    assert half.server.t == stop
    place = RunDir.create(tmp_path / "run", {}, {}, half)
    final = run(e, place.restore(begin(e)), lambda *_: False)
    np.testing.assert_array_equal(final.server.theta, whole.server.theta)
    np.testing.assert_array_equal(final.server.shared.P, whole.server.shared.P)


def test_each_stage_is_on_record_as_soon_as_it_is_released(small):
    e = ready(*small, *PRIVATE)
    config, plan = e.config, e.plan
    record, spent = Record(), []
    for t in (-2, -1, 0, 1, 6):
        record = record.after(config, plan, t)
        spent.append(record.released.mu() ** 2)
    shares = np.array(spent) / plan.mu() ** 2
    np.testing.assert_allclose(shares, [0, 0.03, 0.1, 0.1 + 0.9 / 6, 1])
    assert record.released.rounds == 6
    assert record.epsilon(config, plan) == pytest.approx(10, rel=1e-6)


def test_a_set_up_is_finished_before_a_run_is_extended(small, tmp_path, monkeypatch):
    from fedsofim.transforms.stages import Covariance

    values = compose([*small, *PRIVATE, f"output.dir={tmp_path / 'run'}"])
    fold = Covariance.fold
    monkeypatch.setattr(Covariance, "fold", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.run(values)
    monkeypatch.setattr(Covariance, "fold", fold)
    with pytest.raises(ConfigError, match="its set-up is not finished"):
        session.resume(tmp_path / "run", {"rounds": 8})
    place = session.resume(tmp_path / "run")
    other = session.run({**values, "output": {**values["output"], "dir": str(tmp_path / "b")}})
    same = [np.load(p.path / "model.npz")["theta"] for p in (place, other)]
    np.testing.assert_array_equal(*same)


def test_a_stack_gives_the_runs_of_their_own(small):
    rates = (0.1, 0.4)
    experiments = [
        ready(*small, "strategy=fedgd", *PRIVATE, f"strategy.lr={rate}") for rate in rates
    ]
    assert len({stack_key(e.config) for e in experiments}) == 1
    stack = run_stacked(experiments, lambda *_: None)
    for e, server in zip(experiments, stack, strict=True):
        alone = run(e, begin(e), lambda *_: False).server
        np.testing.assert_array_equal(server.shared.P, alone.shared.P)
        np.testing.assert_allclose(server.theta, alone.theta, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        "privacy.epsilon=2",
        "privacy.delta=1e-6",
        "privacy.adjacency=add-remove",
        "transform.radius=5",
        "seed=1",
        "aggregation=size",
    ],
)
def test_what_decides_the_map_is_not_stacked(small, other):
    keys = {stack_key(parse(compose([*small, *PRIVATE, *more]))) for more in ((), (other,))}
    assert len(keys) == 2


def test_without_noise_exact_sums_train_the_same_model(small):
    few = [*small, *PRIVATE, "strategy=fedgd", "strategy.lr=1", "privacy.noise_multiplier=0"]
    (_, fast), (_, exact) = trained(*few), trained(*few, "privacy.noise=exact")
    a, b = fast.server.theta, exact.server.theta
    np.testing.assert_allclose(b, a, rtol=0, atol=5e-3 * np.abs(a).max())
    assert not np.array_equal(a, b)


def test_exact_noise_trains_on_mapped_records(small):
    _, final = trained(*small, *PRIVATE, "privacy.noise=exact")
    assert np.isfinite(final.server.theta).all()


def test_a_private_map_is_worth_its_price_on_real_features():
    """Three quarters of a feature's square norm is the mean, on which a clip is wasted."""
    given = ("partition.clients=5", "rounds=20", "aggregation=size", "privacy.epsilon=1")
    scores = {}
    for name in ("none", "centre", "private", "public"):
        lr, clip = (0.1, 10.0) if name == "none" else (2.0, 2.0)
        more = (f"transform={name}", "strategy=fedgd", f"strategy.lr={lr}", f"privacy.clip={clip}")
        e, final = trained(*given, *more)
        scores[name] = measure(e, final, None, 0.0)["accuracy"]
    assert min(scores["centre"], scores["private"], scores["public"]) > scores["none"] + 0.02
    assert scores["private"] > 0.68
