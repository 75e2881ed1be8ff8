"""Training that begins with a head in one shot."""

import numpy as np
import pytest

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines.local import run
from fedsofim.engines.stacked import run as run_stacked
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies import STRATEGIES

MAPPED = ("transform=private", "transform.radius=4", "aggregation=size")
START = (*MAPPED, "start=ridge", "start_share=0.2")
OWN_OR_SILENT = {"alone", "ridge", "pfedsop", "fedavg_finetune", "ditto"}


def ready(*overrides):
    return prepare(parse(compose(overrides)))


def trained(e, stop=None):
    return run(e, begin(e), lambda now, G, **_: now.server.t == stop).server


def test_its_share_is_charged_and_the_whole_keeps_the_budget(small):
    e = ready(*small, *START)
    assert [stage.name for stage in e.config.stages] == ["mean", "covariance", "class moments"]
    shares = np.array([event.mu for event in e.plan.stage_events()]) ** 2 / e.plan.mu() ** 2
    np.testing.assert_allclose(shares, [0.03, 0.07, 0.2], rtol=1e-6)
    assert e.plan.epsilon() == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - OWN_OR_SILENT))
def test_every_strategy_that_trains_a_model_begins_with_it(small, strategy):
    e = ready(*small, f"strategy={strategy}", *START, "privacy.epsilon=1e3")
    first = trained(e, stop=0)
    assert first.t == 0
    assert e.test.through(first.shared.P).evaluate(first.theta)[0] > 0.8
    assert trained(e).t == 6


def test_without_rounds_worth_the_name_it_is_the_head_of_ridge(small):
    """From the same noise: both have the mean before it, and nothing after."""
    same = ["transform=centre", "transform.radius=4", "aggregation=size", "privacy.epsilon=1e3"]
    one = ready(*small, *same, "strategy=fedgd", "start=ridge", "start_share=0.9")
    other = ready(*small, *same, "strategy=ridge", "transform.mean_share=0.03")
    a, b = trained(one, stop=0), trained(other)
    z = [server.theta / np.abs(server.theta).max() for server in (a, b)]
    np.testing.assert_allclose(*z, atol=0.1)


def test_a_stack_begins_as_runs_of_their_own_do(small):
    es = [ready(*small, *START, "strategy=fedgd", f"strategy.lr={lr}") for lr in (0.1, 0.4)]
    for e, server in zip(es, run_stacked(es, lambda *_: None), strict=True):
        np.testing.assert_allclose(server.theta, trained(e).theta, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["strategy=ridge"], "start=ridge: is where the server's training begins"),
        (["strategy=pfedsop"], "strategy=pfedsop has none"),
        (["start_share=1"], "start_share=1"),
        (["start=lda"], "start=lda: choose one of none, ridge"),
    ],
)
def test_what_it_does_not_go_with_is_told_in_one_line(small, given, told):
    with pytest.raises(ConfigError, match=told) as error:
        parse(compose([*small, *START, *given]))
    assert "\n" not in str(error.value)


def test_records_that_are_not_mapped_are_refused(small):
    with pytest.raises(ConfigError, match="use transform=private"):
        parse(compose([*small, "start=ridge"]))


def test_settings_from_public_numbers_reckon_with_it():
    rates = [
        compose(["settings=auto", "strategy=fedgd", "privacy.epsilon=1", *more])["strategy"]["lr"]
        for more in ([], ["start=ridge", "start_share=0.3"])
    ]
    assert rates[1] == pytest.approx(rates[0] * np.sqrt(0.6 / 0.9), rel=1e-6)
