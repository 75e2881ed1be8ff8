import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsofim.config.build import build
from fedsofim.core.errors import ConfigError
from fedsofim.core.rate import Rate
from fedsofim.strategies.fedgd import FedGD
from fedsofim.strategies.rule import start, step
from fedsofim.strategies.sofim import Sofim


def sofim(**changes):
    return Sofim(**{"rate": Rate(0.8), "rho": 0.5, "beta": 0.9} | changes)


def directions(rule, aggregates):
    buffers, out = rule.init(aggregates[0]), []
    rule = replace(rule, rate=Rate(1.0))
    for t, G in enumerate(aggregates):
        buffers, direction = rule.update(buffers, G, t, len(aggregates))
        out.append(direction)
    return out


def averages(aggregates, beta, corrected):
    """The moving average after each round, written out as a weighted sum."""
    for t in range(len(aggregates)):
        M = sum((1 - beta) * beta ** (t - s) * aggregates[s] for s in range(t + 1))
        yield M / (1 - beta ** (t + 1)) if corrected else M


def dense(M, rho, v):
    """`(M M' + rho I)^-1 v` with the matrix written out."""
    m = M.ravel()
    H = np.linalg.inv(np.outer(m, m) + rho * np.eye(m.size))
    return (H @ v.ravel()).reshape(v.shape)


settings = st.tuples(st.floats(0.1, 10), st.floats(0, 0.99), st.booleans(), st.integers(0, 999))


@given(settings)
def test_momentum_is_scaled_by_its_own_norm(setting):
    rho, beta, corrected, seed = setting
    G = np.random.default_rng(seed).normal(size=(5, 2, 3))
    rule = sofim(rho=rho, beta=beta, bias_correction=corrected)
    for ours, M in zip(directions(rule, G), averages(G, beta, corrected), strict=True):
        np.testing.assert_allclose(ours, M / (rho + (M**2).sum()), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(ours, dense(M, rho, M), rtol=1e-8, atol=1e-11)


@given(settings)
def test_the_gradient_is_preconditioned_by_the_momentum(setting):
    rho, beta, corrected, seed = setting
    G = np.random.default_rng(seed).normal(size=(5, 2, 3))
    rule = sofim(rho=rho, beta=beta, bias_correction=corrected, direction="gradient")
    expected = [dense(M, rho, g) for M, g in zip(averages(G, beta, corrected), G, strict=True)]
    np.testing.assert_allclose(directions(rule, G), expected, rtol=1e-8, atol=1e-11)


def test_bias_correction_makes_the_average_of_a_constant_that_constant(rng):
    G = np.repeat(rng.normal(size=(1, 2, 3)), 6, axis=0)
    rule = sofim(beta=0.9, bias_correction=True, precondition=False)
    np.testing.assert_allclose(directions(rule, G), G)


@pytest.mark.parametrize("direction", ["momentum", "gradient"])
def test_warmup_steps_along_the_average_alone(rng, direction):
    G = rng.normal(size=(6, 2, 3))
    cold = directions(sofim(direction=direction), G)
    warm = directions(sofim(direction=direction, warmup=3), G)
    np.testing.assert_allclose(warm[:3], list(averages(G, 0.9, False))[:3])
    np.testing.assert_array_equal(warm[3:], cold[3:])


@pytest.mark.parametrize("direction", ["momentum", "gradient"])
def test_warm_start_fades_the_preconditioner_in(rng, direction):
    G = rng.normal(size=(6, 2, 3))
    full = directions(sofim(direction=direction), G)
    fading = directions(sofim(direction=direction, warm_start=4), G)
    plain = G if direction == "gradient" else list(averages(G, 0.9, False))
    for t in range(6):
        lam = min(1, t / 4)
        np.testing.assert_allclose(fading[t], (1 - lam) * plain[t] / 0.5 + lam * full[t])


def test_without_memory_and_preconditioner_it_is_fedgd_exactly(rng):
    theta, G = rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=(5, 2, 3))
    ablated = sofim(rate=Rate(0.1, "cosine"), beta=0.0, precondition=False)
    ours, plain = start(ablated, theta), start(FedGD(rate=Rate(0.1, "cosine")), theta)
    for g in G.astype(np.float32):
        ours = step(ablated, ours, g, 5)
        plain = step(FedGD(rate=Rate(0.1, "cosine")), plain, g, 5)
        np.testing.assert_array_equal(ours.theta, plain.theta)


def test_the_ema_only_ablation_is_the_average(rng):
    G = rng.normal(size=(5, 2, 3))
    ours = directions(sofim(precondition=False), G)
    np.testing.assert_allclose(ours, list(averages(G, 0.9, False)))


def test_the_grad_only_ablation_sees_the_gradient_alone(rng):
    G = rng.normal(size=(5, 2, 3))
    expected = [g / (0.5 + (g**2).sum()) for g in G]
    for direction in ("momentum", "gradient"):
        ours = directions(sofim(beta=0.0, direction=direction), G)
        np.testing.assert_allclose(ours, expected)


@given(st.floats(1e-3, 1e3), st.floats(1e-6, 1e6))
def test_a_momentum_step_is_never_longer_than_this(rho, scale):
    G = scale * np.ones((1, 2, 3))
    (direction,) = directions(sofim(rho=rho, beta=0.0), G)
    assert np.linalg.norm(direction) <= 1 / (2 * math.sqrt(rho)) * (1 + 1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"rho": 0.0},
        {"rho": -1.0},
        {"rho": math.nan},
        {"beta": 1.0},
        {"beta": -0.1},
        {"warmup": -1},
        {"warm_start": -1},
        {"lr": 0.0},
    ],
)
def test_senseless_settings_are_refused(changes):
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        build(Sofim, {"lr": 0.8, "rho": 0.5, "beta": 0.9} | changes, "")


@pytest.mark.parametrize("direction", ["momentum", "gradient"])
@pytest.mark.parametrize(
    ("epsilon", "like"), [(1e-3, 0.5), (0.5, 0.5), (0.8, 1), (2, 1), (3, 5), (8, 10), ("inf", 10)]
)
def test_settings_follow_the_budget(config_of, direction, epsilon, like):
    chosen = [f"strategy.direction={direction}"]
    near = config_of(f"privacy.epsilon={epsilon}", *chosen).strategy
    assert near == config_of(f"privacy.epsilon={like}", *chosen).strategy


def test_the_papers_settings_are_the_defaults(config_of):
    by_epsilon = {e: config_of(f"privacy.epsilon={e}").strategy for e in (0.5, 1, 5, 10)}
    shared = {"direction": "momentum"}
    assert by_epsilon == {
        0.5: Sofim(rate=Rate(0.2), rho=0.5, beta=0.95, bias_correction=True, warmup=20, **shared),
        1: Sofim(rate=Rate(3), rho=10, beta=0.8, bias_correction=True, **shared),
        5: Sofim(rate=Rate(0.8), rho=0.5, beta=0.9, **shared),
        10: Sofim(rate=Rate(0.8), rho=0.5, beta=0.9, **shared),
    }


def test_a_setting_of_the_users_own_wins(config_of):
    assert config_of("strategy.lr=0.123", "strategy.rho=7").strategy.rate.lr == 0.123
