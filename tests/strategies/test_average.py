"""Averages of the last iterates: what is evaluated and written, and nothing else."""

import math

import numpy as np
import pytest

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines import stacked
from fedsofim.engines.local import run
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies.average import averaged, blank, model_of
from fedsofim.strategies.rule import Empty, ServerState

ROUNDS = 6  # of the small data's runs; the last quarter is 2


def explicit(how, iterates):
    """The average, as the page defines it."""
    if how == "none":
        return iterates[-1]
    if how == "tail":
        return np.mean(iterates[-2:], axis=0)
    weights = 0.8 ** np.arange(len(iterates))[::-1]
    return np.tensordot(weights / weights.sum(), iterates, 1)


def watched(small, *more):
    e = prepare(parse(compose([*small, *more])))
    iterates = []
    final = run(e, begin(e), lambda now, G, **_: iterates.append(now.server.theta))
    return e, final.server, np.array(iterates[-ROUNDS:], np.float64)


@pytest.mark.parametrize("how", ["none", "tail", "ema"])
def test_the_model_is_the_mean_of_iterates_that_do_not_know_of_it(small, how):
    _, plain, before = watched(small)
    _, server, iterates = watched(small, f"average={how}")
    np.testing.assert_array_equal(iterates, before)
    np.testing.assert_array_equal(server.theta, plain.theta)
    np.testing.assert_allclose(model_of(server), explicit(how, iterates), rtol=1e-6, atol=1e-7)
    assert np.array_equal(model_of(server), plain.theta) == (how == "none")


@pytest.mark.parametrize("rounds", [1, 3, 4, 5, 20])
def test_the_tail_is_the_last_quarter_of_the_rounds(rounds):
    quarter = math.ceil(rounds / 4)
    state = ServerState(np.zeros(1), Empty(), 0, average=blank("tail", np.zeros(1)))
    for t in range(1, rounds + 1):
        state = averaged("tail", state._replace(theta=np.array([float(t)]), t=t), rounds)
        if t <= rounds - quarter:
            assert model_of(state) == t
    assert model_of(state) == np.mean(np.arange(1, rounds + 1)[-quarter:])


@pytest.mark.parametrize("how", ["tail", "ema"])
def test_a_mapped_run_writes_and_scores_the_average(small, tmp_path, how):
    given = [*small, "transform=private", "transform.radius=4", f"average={how}"]
    place = session.run(compose([*given, f"output.dir={tmp_path / 'run'}"]))
    theta = np.load(place.path / "model.npz")["theta"]
    _, server, iterates = watched(small, *given[-3:])
    raw = explicit(how, iterates) @ server.shared.P
    np.testing.assert_allclose(theta, raw, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(place.parameters()[0], theta)
    test = prepare(parse(compose(small))).test
    assert place.metrics()[-1]["accuracy"] == test.evaluate(theta)[0]


@pytest.mark.parametrize("how", ["tail", "ema"])
@pytest.mark.parametrize("stop", [2, 5])
def test_a_resumed_run_has_the_same_average(small, tmp_path, how, stop):
    e, whole, _ = watched(small, f"average={how}")
    half = run(e, begin(e), lambda now, G, **_: now.server.t == stop)
    place = RunDir.create(tmp_path / "run", {}, {}, half)
    final = run(e, place.restore(begin(e)), lambda *_: False).server
    np.testing.assert_array_equal(final.average.total, whole.average.total)
    np.testing.assert_array_equal(model_of(final), model_of(whole))


def test_a_stack_has_the_averages_of_its_runs(small):
    hows = ("none", "tail", "ema")
    experiments = [prepare(parse(compose([*small, f"average={how}"]))) for how in hows]
    assert len({stacked.stack_key(e.config) for e in experiments}) == 1
    for how, e, server in zip(
        hows, experiments, stacked.run(experiments, lambda *_: None), strict=True
    ):
        alone = run(e, begin(e), lambda *_: False).server
        np.testing.assert_allclose(
            model_of(server), model_of(alone), rtol=1e-4, atol=1e-5, err_msg=how
        )


def test_models_of_clients_are_not_averaged(small):
    with pytest.raises(ConfigError, match="average=ema"):
        parse(compose([*small, "strategy=pfedsop", "average=ema"]))
    with pytest.raises(ConfigError, match="average=mean: choose one of none, tail, ema"):
        parse(compose([*small, "average=mean"]))
