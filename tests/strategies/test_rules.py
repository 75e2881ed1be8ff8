"""The contract that every server rule keeps, and what all of them share."""

import math

import numpy as np
import pytest

from fedsofim.core.errors import ConfigError
from fedsofim.core.rate import Rate
from fedsofim.strategies import STRATEGIES
from fedsofim.strategies.aggregation import aggregate
from fedsofim.strategies.alone import Alone
from fedsofim.strategies.fedgd import FedGD
from fedsofim.strategies.pfedsop import PFedSOP
from fedsofim.strategies.ridge import Ridge
from fedsofim.strategies.rule import start, step

ROUNDS = 5


@pytest.fixture(params=STRATEGIES)
def rule(request, config_of):
    config = config_of(f"strategy={request.param}", f"rounds={ROUNDS}")
    assert type(config.strategy) is STRATEGIES[request.param]
    return config.strategy


@pytest.fixture(params=[np.float32, np.float64])
def theta(request, rng):
    return rng.normal(size=(3, 5)).astype(request.param)


def train(rule, theta, aggregates):
    state = start(rule, theta)
    for G in aggregates:
        state = step(rule, state, G, ROUNDS)
    return state


def gradients(rng, theta, n=ROUNDS):
    return rng.normal(size=(n, *theta.shape)).astype(theta.dtype)


def leaves(state):
    for value in state:
        if isinstance(value, tuple):
            yield from leaves(value)
        else:
            yield np.asarray(value)


def test_shape_and_dtype_are_kept(rule, theta, rng):
    state = start(rule, theta)
    kinds = [(a.shape, a.dtype) for a in leaves(state)]
    for G in gradients(rng, theta):
        state = step(rule, state, G, ROUNDS)
        assert [(a.shape, a.dtype) for a in leaves(state)] == kinds
        assert np.isfinite(state.theta).all()
    assert state.t == ROUNDS


def test_a_step_is_pure(rule, theta, rng):
    first, second = gradients(rng, theta, 2)
    state = step(rule, start(rule, theta), first, ROUNDS)
    before = [a.copy() for a in (*leaves(state), second)]
    after = step(rule, state, second, ROUNDS)
    for a, b in zip((*leaves(state), second), before, strict=True):
        np.testing.assert_array_equal(a, b)
    again = step(rule, state, second, ROUNDS)
    for a, b in zip(leaves(after), leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_zero_aggregate_at_the_start_moves_nothing(rule, theta):
    np.testing.assert_array_equal(train(rule, theta, [np.zeros_like(theta)]).theta, theta)


def test_every_rule_broadcasts_its_parameters(rule, theta):
    assert rule.broadcast(start(rule, theta))["theta"] is theta


def test_every_rule_goes_down_a_bowl(rule):
    if isinstance(rule, PFedSOP | Alone | Ridge):
        pytest.skip("its clients go, each by itself; the server has no model")
    theta = np.full((2, 3), 10.0)
    state = start(rule, theta)
    for _ in range(60):
        state = step(rule, state, state.theta / 10, 60)
    assert np.linalg.norm(state.theta) < np.linalg.norm(theta)


@pytest.mark.parametrize("lr", [0.0, -1.0, math.inf, math.nan])
def test_learning_rates_are_positive(lr):
    with pytest.raises(ConfigError, match=r"lr=.*must be a finite number > 0"):
        FedGD(rate=Rate(lr))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [2, 2, 2, 2]),
        ("linear", [2, 1.5, 1, 0.5]),
        ("cosine", [2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5)]),
        ("inverse-sqrt", [2, 2 / math.sqrt(2), 2 / math.sqrt(3), 1]),
    ],
)
def test_schedules(schedule, expected):
    rate = Rate(2.0, schedule)
    assert [rate.at(t, 4) for t in range(4)] == pytest.approx(expected)


def test_fedgd_subtracts_what_the_schedule_says(rng):
    theta = rng.normal(size=(2, 3))
    G = gradients(rng, theta, 4)
    expected = theta - 2 * G[0] - 1.5 * G[1] - 1 * G[2] - 0.5 * G[3]
    rule = FedGD(rate=Rate(2.0, "linear"))
    state = start(rule, theta)
    for g in G:
        state = step(rule, state, g, 4)
    np.testing.assert_allclose(state.theta, expected)


def test_aggregation_by_client_and_by_size(rng):
    releases, sizes = rng.normal(size=(3, 2, 4)), np.array([1, 2, 7])
    np.testing.assert_allclose(aggregate(releases, sizes, "uniform"), releases.mean(axis=0))
    by_size = np.average(releases, axis=0, weights=sizes)
    np.testing.assert_allclose(aggregate(releases, sizes, "size"), by_size)
    assert aggregate(releases.astype(np.float32), sizes, "size").dtype == np.float32


def test_by_size_the_aggregate_is_the_mean_over_records(rng):
    records = rng.normal(size=(10, 4))
    parts = [records[:1], records[1:3], records[3:]]
    releases = np.stack([part.mean(axis=0) for part in parts])
    sizes = np.array([len(part) for part in parts])
    np.testing.assert_allclose(aggregate(releases, sizes, "size"), records.mean(axis=0))
