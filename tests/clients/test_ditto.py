"""Ditto: what it is at both ends of its pull, what it minimises, and what it does not send."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedsofim.clients import Client
from fedsofim.clients.alone import Alone
from fedsofim.clients.ditto import Ditto
from fedsofim.clients.steps import LocalSteps
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines.local import run
from fedsofim.models import head
from fedsofim.privacy.mechanism import seeded
from fedsofim.privacy.plan import Plan
from fedsofim.runs.experiment import begin, prepare

CLASSES, FEATURES = 3, 4
OWN = {"own_lr": 0.2, "own_steps": 3, "own_batch_size": 4}


def plan(z=0.0, clip=math.inf):
    return Plan(clip=clip, noise_multiplier=z, releases=1, delta=1e-5, adjacency="replace-one")


def client(**values):
    return Ditto(**({"lr": 0.3, "steps": 2, "pull": 0.5} | OWN | values))


@pytest.fixture
def clients(rng):
    def one(i, n):
        x = rng.standard_normal((n, FEATURES))
        return Client(i, head.examples(x, rng.integers(0, CLASSES, n), CLASSES))

    return [one(i, n) for i, n in enumerate((7, 11, 5, 8))]


@pytest.fixture
def theta(rng):
    return rng.standard_normal((CLASSES, FEATURES + 1))


def rounds(program, theta, clients, told=None, count=4, noise=seeded):
    """What is sent and remembered, round by round, while the server's model walks about."""
    state, out = program.init(theta, len(clients)), []
    for t in range(count):
        w = theta * (1 + 0.1 * t)
        sent, state = program.release({"theta": w}, clients, state, told or plan(), noise(0, t))
        state = program.train_own({"theta": w}, clients, state)
        out.append((w, sent, state))
    return out


def test_without_a_pull_its_own_model_is_that_of_training_alone(theta, clients):
    ours = rounds(client(pull=0), theta, clients)
    alone = rounds(Alone(lr=0.2, steps=3, batch_size=4), theta, clients)
    for (_, _, mine), (_, _, theirs) in zip(ours, alone, strict=True):
        np.testing.assert_array_equal(mine.theta, theirs.theta)
        np.testing.assert_array_equal(mine.own, theirs.steps)


def test_with_an_infinite_pull_its_own_model_is_the_common_one(theta, clients):
    for w, _, state in rounds(client(pull=math.inf), theta, clients):
        np.testing.assert_array_equal(state.theta, np.stack([w] * 4))
    for w, _, state in rounds(client(pull=1e9), theta, clients):
        np.testing.assert_allclose(state.theta, np.stack([w] * 4), atol=1e-7)


def test_a_run_with_an_infinite_pull_is_fedavg_scored_one_round_late(small):
    common = [*small, "privacy=none", "rounds=5", "client.steps=3", "client.lr=0.3"]
    e, avg = (
        prepare(parse(compose([*common, *more])))
        for more in (["strategy=ditto", "client.pull=inf"], ["strategy=fedavg"])
    )
    e = e._replace(config=replace(e.config, client=replace(e.config.client, batch_size=None)))
    before = [avg.theta]
    run(avg, begin(avg), lambda now, G: before.append(now.server.theta))
    own = []
    last = run(e, begin(e), lambda now, G: own.append(now.clients.theta))
    np.testing.assert_allclose(last.server.theta, before[-1], rtol=1e-5, atol=1e-6)
    for models, w in zip(own, before, strict=False):
        np.testing.assert_allclose(models, np.stack([w] * len(models)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pull", [0.1, 1.0, 30.0])  # with 30 a step on both terms would diverge
def test_it_settles_where_the_papers_objective_has_its_minimum(theta, clients, pull):
    program = client(pull=pull, own_lr=0.3, own_steps=4000, own_batch_size=None)
    ((w, _, state),) = rounds(program, theta, clients, count=1)
    for v, (_, D) in zip(state.theta, clients, strict=True):
        slope = head.clipped_gradient_sum(v, D, math.inf) / D.size + pull * (v - w)
        assert np.abs(slope).max() < 1e-8


def test_for_small_steps_it_is_the_papers_step(theta, clients, rng):
    """The two differ in the second order of the learning rate: ten times less, a hundredth."""
    apart = []
    for lr in (1e-2, 1e-3):
        program = client(own_lr=lr, own_steps=1, own_batch_size=None, pull=2.0)
        v = rng.standard_normal((4, *theta.shape))
        state = program.init(theta, 4)._replace(theta=v)
        after = program.train_own({"theta": theta}, clients, state)
        g = [
            head.clipped_gradient_sum(one, D, math.inf) / D.size
            for one, (_, D) in zip(v, clients, strict=True)
        ]
        theirs = v - lr * (np.stack(g) + 2.0 * (v - theta))
        apart.append(np.abs(after.theta - theirs).max() / np.abs(v - theta).max())
    assert 1e-8 < apart[1] < apart[0] / 50


# --- with a budget ------------------------------------------------------------------------------


def test_what_is_sent_is_fedavgs_and_knows_nothing_of_the_own_model(theta, clients):
    told = plan(z=2.0, clip=1.0)
    fedavg = rounds(LocalSteps(lr=0.3, steps=2), theta, clients, told)
    for other in (client(), client(pull=0, own_lr=5.0, own_steps=9, own_batch_size=1)):
        for (_, sent, _), (_, theirs, _) in zip(
            rounds(other, theta, clients, told), fedavg, strict=True
        ):
            np.testing.assert_allclose(sent, theirs, rtol=1e-10, atol=1e-14)


def test_its_own_model_takes_no_noise_and_is_the_same_with_any_budget(theta, clients):
    drawn = []

    def counted(seed, t):
        return lambda i, draw: drawn.append((t, i, draw)) or seeded(seed, t)(i, draw)

    private = rounds(client(), theta, clients, plan(z=2.0, clip=1.0), noise=counted)
    assert sorted(drawn) == [(t, i, k) for t in range(4) for i in range(4) for k in range(2)]
    for (_, _, a), (_, _, b) in zip(private, rounds(client(), theta, clients), strict=True):
        np.testing.assert_array_equal(a.theta, b.theta)


def test_every_step_that_is_sent_is_charged_and_no_other():
    config = parse(compose(["strategy=ditto", "client.steps=4", "client.own_steps=50"]))
    assert config.plan().releases == 280
    assert config.epsilon() <= 10
    assert client(steps=1).disclosure.shares_noise
    assert not client(steps=2).disclosure.shares_noise


def test_batches_are_refused_with_a_budget_where_they_are_sent():
    parse(compose(["strategy=ditto", "client.own_batch_size=50"]))
    with pytest.raises(ConfigError, match="batch_size"):
        parse(compose(["strategy=ditto", "client.batch_size=50"]))


@pytest.mark.parametrize("setting", ["pull=-1", "own_lr=0", "own_steps=-1", "own_batch_size=0"])
def test_senseless_settings_are_refused(setting):
    with pytest.raises(ConfigError, match=f"client.{setting.split('=')[0]}"):
        parse(compose(["strategy=ditto", f"client.{setting}"]))
