"""A head in one shot: what the server makes of noisy moments, and whole runs."""

import json
import math

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines import stacked
from fedsofim.engines.local import run
from fedsofim.privacy.plan import Privacy
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir
from fedsofim.runs.evaluation import measure
from fedsofim.runs.experiment import begin, prepare
from fedsofim.runs.observer import announcement
from fedsofim.strategies.average import model_of
from fedsofim.strategies.ridge import Moments, Ridge, discriminants
from fedsofim.strategies.rule import for_raw, start

RIDGE = ("strategy=ridge", "transform.radius=4")


def ready(small, *more):
    return prepare(parse(compose([*small, *RIDGE, *more])))


def trained(e):
    return run(e, begin(e), lambda *_: False).server


def moments(x, y, K):
    one_hot = np.eye(K)[y]
    return Moments(x.T @ x / len(x), one_hot.T @ x / len(x), one_hot.mean(axis=0))


def test_without_noise_it_is_scikit_learns_discriminant_analysis(rng):
    F, K = 6, 3
    y = rng.choice(K, 4000, p=[0.5, 0.3, 0.2])
    x = rng.normal(size=(K, F))[y] + rng.normal(size=(4000, F)) @ (
        np.eye(F) + 0.2 * rng.normal(size=(F, F))
    )
    theta = discriminants(moments(x, y, K), 0.0, 0.0)
    known = LinearDiscriminantAnalysis(solver="lsqr").fit(x, y)
    right = np.column_stack([known.coef_, known.intercept_])
    # Both may add the same to all classes; lambda is 1e-4 of the mean variance.
    gap = (theta - theta.mean(axis=0)) - (right - right.mean(axis=0))
    assert np.abs(gap).max() < 0.02 * np.abs(right).max()


def test_pure_noise_makes_no_large_head(rng):
    """Eigenvalues below zero are set to zero, and lambda keeps the inverse small."""
    F, K, std = 20, 4, 1.0
    E = np.triu(rng.normal(size=(F, F))) * std
    known = Moments((E + E.T) / 2, rng.normal(size=(K, F)) * std, rng.normal(size=K))
    theta = discriminants(known, std, std)
    assert np.isfinite(theta).all()
    largest = np.abs(known.sums).max() * 2 * K * math.sqrt(F) / (0.5 * std * math.sqrt(2 * F))
    assert np.abs(theta[:, :F]).max() < largest


def test_parts_that_are_noise_are_not_believed(rng):
    known = moments(rng.normal(size=(100, 3)), np.arange(100) % 2, 2)
    odd = known._replace(parts=np.array([-3.0, 4.0]))
    assert np.isfinite(discriminants(odd, 0.0, 5.0)).all()
    np.testing.assert_array_equal(discriminants(odd, 0.0, 5.0), discriminants(known, 0.0, 5.0))


def test_it_learns_and_spends_its_budget_in_two_releases(small, tmp_path):
    given = [*small, *RIDGE, "privacy.epsilon=50", "rounds=1", f"output.dir={tmp_path / 'run'}"]
    place = session.run(compose(given))
    (row,) = place.metrics()
    assert row["epsilon"] == pytest.approx(50, rel=1e-6)
    assert row["accuracy"] > 0.7
    record = place.record()
    assert sorted(record.released.start.tolist()) == [-2, -1]
    assert record.released.rounds == 0
    summary = json.loads((place.path / "summary.json").read_text())
    assert summary["accuracy"] == row["accuracy"]
    theta = np.load(place.path / "model.npz")["theta"]
    np.testing.assert_array_equal(place.parameters()[0], theta)
    assert (place.path / "report.html").is_file()


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_stages_alone_spend_all_there_is(adjacency):
    privacy = Privacy(epsilon=3.0, delta=1e-5, clip=1.0, adjacency=adjacency)
    plan = privacy.plan(releases=0, clients=4, aggregation="size", shares=(0.1, 0.4))
    assert plan.epsilon() == pytest.approx(3.0, rel=1e-6)
    first, second = (event.mu**2 for event in plan.stage_events())
    assert second == pytest.approx(4 * first)
    silent = privacy.plan(releases=0, clients=4, aggregation="size")
    assert silent.noise_multiplier == 0
    assert silent.epsilon() == 0


def test_one_round_is_the_default_and_more_change_nothing(small):
    assert parse(compose(["strategy=ridge"])).rounds == 1
    assert parse(compose(["strategy=ridge"])).aggregation == "size"
    assert parse(compose([])).rounds == 70
    once, often = (trained(ready(small, f"rounds={n}")) for n in (1, 5))
    np.testing.assert_array_equal(once.theta, often.theta)
    np.testing.assert_array_equal(model_of(once), model_of(often))


@pytest.mark.parametrize("stop", [-1, 0])
def test_a_run_that_stopped_between_its_releases_goes_on_to_the_same_end(small, tmp_path, stop):
    e = ready(small, "rounds=1")
    half = run(e, begin(e), lambda now, G, **_: now.server.t == stop)
    assert half.server.t == stop
    place = RunDir.create(tmp_path / "run", {}, {}, half)
    final = run(e, place.restore(begin(e)), lambda *_: False).server
    np.testing.assert_array_equal(model_of(final), model_of(trained(e)))


def test_a_stack_gives_the_run_of_its_own(small):
    e = ready(small)
    (server,) = stacked.run([e], lambda *_: None)
    np.testing.assert_allclose(server.theta, trained(e).theta, rtol=1e-4, atol=1e-5)


def test_without_noise_exact_sums_give_the_same_head(small):
    heads = [
        trained(ready(small, "privacy.noise_multiplier=0", f"privacy.noise={noise}")).theta
        for noise in ("seeded", "exact")
    ]
    np.testing.assert_allclose(*heads, rtol=0, atol=5e-3 * np.abs(heads[0]).max())
    assert not np.array_equal(*heads)


@pytest.mark.parametrize("more", [("privacy.noise=exact",), ("privacy.trust=aggregate",)])
def test_it_runs_with_exact_noise_and_shared_noise(small, more):
    e = ready(small, "aggregation=size", *more)
    server = trained(e)
    assert np.isfinite(server.theta).all()
    assert e.plan.epsilon() == pytest.approx(10, rel=1e-6)


def test_its_partition_does_not_matter_without_noise(small):
    heads = [
        model_of(trained(ready(small, "privacy.noise_multiplier=0", "aggregation=size", *more)))
        for more in (["partition=iid"], ["partition=dirichlet"])
    ]
    np.testing.assert_allclose(*heads, rtol=1e-2, atol=1e-3 * np.abs(heads[0]).max())


def test_its_budget_is_told_in_plain_words(small):
    e = ready(small)
    told = "\n".join(announcement(e, 10.0))
    assert "epsilon 10 " in told
    assert "mean, class moments" in told
    assert "nothing is sent" not in told


@pytest.mark.parametrize(
    "override", ["strategy.share=1", "strategy.radius=0", "strategy.alpha=0", "strategy.alpha=3"]
)
def test_bad_values_are_told_in_one_line(override):
    with pytest.raises(ConfigError, match=override) as error:
        parse(compose(["strategy=ridge", override]))
    assert "\n" not in str(error.value)


def test_features_of_unknown_norm_are_scaled_by_a_release(small):
    e = prepare(parse(compose([*small, "strategy=ridge", "privacy.epsilon=50"])))
    names = [stage.name for stage in e.config.stages]
    assert names == ["norms", "mean", "centred norms", "class moments"]
    assert e.plan.epsilon() == pytest.approx(50, rel=1e-6)
    known = prepare(parse(compose([*small, *RIDGE, "privacy.epsilon=50"])))
    found, given = (
        e.test.evaluate(for_raw(s.theta, s.shared))[0] for s in map(trained, (e, known))
    )
    assert found > given - 0.05


@pytest.mark.parametrize("transform", ["none", "kfc"])
def test_records_that_are_not_centred_are_refused(transform):
    with pytest.raises(ConfigError, match="use transform=centre, private or public"):
        parse(compose(["strategy=ridge", f"transform={transform}"]))


@pytest.mark.parametrize("transform", ["private", "public"])
def test_other_maps_do_as_well(transform):
    given = ["strategy=ridge", f"transform={transform}", "privacy.epsilon=5"]
    e = prepare(parse(compose(given)))
    final = run(e, begin(e), lambda *_: False)
    assert e.plan.epsilon() == pytest.approx(5, rel=1e-6)
    assert measure(e, final, None, 0.0)["accuracy"] > 0.66


def test_a_step_is_nothing():
    state = start(Ridge(), np.ones((2, 3)))
    assert Ridge().update(state.buffers, np.zeros(0), 0, 1)[1] == 0


def test_two_releases_reach_most_of_what_rounds_do_on_real_features():
    e = prepare(parse(compose(["strategy=ridge", "privacy.epsilon=1"])))
    final = run(e, begin(e), lambda *_: False)
    assert measure(e, final, None, 0.0)["accuracy"] > 0.65
