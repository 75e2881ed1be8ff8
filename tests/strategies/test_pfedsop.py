"""pFedSOP and its references: the maths, the memory, and what is charged."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsofim.clients import Client
from fedsofim.clients.alone import Alone
from fedsofim.clients.finetune import FineTune
from fedsofim.clients.pfedsop import PFedSOP, PFedSOPState, angle, gompertz, personal_step
from fedsofim.clients.steps import LocalSteps
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.core.linalg import rank_one_solve
from fedsofim.engines.local import run
from fedsofim.models import head
from fedsofim.privacy.mechanism import seeded
from fedsofim.privacy.plan import Plan
from fedsofim.reports import compare
from fedsofim.runs.directory import RunDir
from fedsofim.runs.evaluation import measure
from fedsofim.runs.experiment import begin, prepare
from fedsofim.runs.session import run as run_session
from fedsofim.strategies.alone import Alone as AloneRule
from fedsofim.strategies.pfedsop import PFedSOP as PFedSOPRule
from fedsofim.strategies.rule import start, step

CLASSES, FEATURES = 3, 4


def plan(z=0.0, clip=math.inf):
    return Plan(clip=clip, noise_multiplier=z, releases=1, delta=1e-5, adjacency="replace-one")


def population(sizes=(7, 11, 5, 8), seed=0):
    rng = np.random.default_rng(seed)
    return [
        Client(
            i,
            head.examples(rng.standard_normal((n, FEATURES)), rng.integers(0, CLASSES, n), CLASSES),
        )
        for i, n in enumerate(sizes)
    ]


def noise(t):
    return seeded(0, t)


def client(**values):
    values = {"lr": 0.3, "steps": 2, "tune_lr": 0.1, "tune_steps": 0} | values
    return PFedSOP(**values)


def received(theta, drift, lr=0.5, rho=0.7, sharpness=1.5):
    return {"theta": theta, "drift": drift, "lr": lr, "rho": rho, "sharpness": sharpness}


def theta0(seed=1):
    return np.random.default_rng(seed).standard_normal((CLASSES, FEATURES + 1))


# --- the blend and the step ---------------------------------------------------------------------


@pytest.mark.parametrize("rho", [1e-3, 0.7, 50.0])
@pytest.mark.parametrize("sharpness", [0.5, 1.0, 4.0])
def test_blend_and_step_are_the_dense_ones(rho, sharpness):
    rng = np.random.default_rng(0)
    drifts, shared = rng.standard_normal((5, 3, 4)), rng.standard_normal((3, 4))
    steps = personal_step(drifts, shared, sharpness, rho)
    for D_i, ours in zip(drifts.reshape(5, -1), steps.reshape(5, -1), strict=True):
        D = shared.ravel()
        cosine = D_i @ D / (math.sqrt(D_i @ D_i) * math.sqrt(D @ D))
        beta = 1 - math.exp(-math.exp(-sharpness * (math.acos(cosine) - 1)))
        Dp = (1 - beta) * D_i + beta * D
        F = np.outer(Dp, Dp) + rho * np.eye(12)
        np.testing.assert_allclose(ours, np.linalg.solve(F, Dp), rtol=1e-9)
        np.testing.assert_allclose(ours, Dp / (rho + Dp @ Dp), rtol=1e-12)
        np.testing.assert_allclose(ours, rank_one_solve(Dp, rho, Dp), rtol=1e-9)


def test_the_weight_at_zero_one_and_pi():
    for lam in (0.3, 1.0, 5.0):
        b = gompertz(np.array([0.0, 1.0, math.pi]), lam)
        assert b[0] == pytest.approx(1 - math.exp(-math.exp(lam)), rel=1e-14)
        assert b[1] == pytest.approx(1 - 1 / math.e, rel=1e-14)
        assert b[2] == pytest.approx(1 - math.exp(-math.exp(-lam * (math.pi - 1))), rel=1e-12)


@given(phi=st.floats(0, math.pi), lam=st.floats(1e-6, 1e6))
def test_the_weight_is_a_weight_and_falls_with_the_angle(phi, lam):
    with np.errstate(over="raise", invalid="raise"):
        a, b = gompertz(np.array([phi, min(math.pi, phi + 0.1)]), lam)
    assert 0 <= b <= a <= 1


@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1e-30, 1e-8, 1.0, 1e8, 1e30]),
    factor=st.sampled_from([-3.0, -1.0, 1.0, 1 / 3]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_parallel_drifts_have_an_angle_whatever_rounding_does(seed, scale, factor, dtype):
    a = (np.random.default_rng(seed).standard_normal((5, 10)) * scale).astype(dtype)
    phi = angle(a, (factor * a).astype(dtype)).item()
    assert 0 <= phi <= math.pi  # and not a number it would be, if the cosine left [-1, 1]
    assert phi == pytest.approx(0 if factor > 0 else math.pi, abs=1e-6)


def test_parallel_drifts_blend_to_a_weighted_mean():
    D = theta0()
    (ours,) = personal_step(2 * D[None], D, 1.0, 0.7)
    b = 1 - math.exp(-math.e)
    Dp = (2 * (1 - b) + b) * D
    np.testing.assert_allclose(ours, Dp / (0.7 + (Dp**2).sum()), rtol=1e-7)


@pytest.mark.parametrize("which", ["own", "shared", "both"])
def test_without_an_angle_there_is_no_step(which):
    D, zero = theta0(), np.zeros((CLASSES, FEATURES + 1))
    own, shared = (zero if which == w else D for w in ("own", "shared"))
    if which == "both":
        own = shared = zero
    step_ = personal_step(np.stack([own, D]), shared, 1.0, 0.7)
    np.testing.assert_array_equal(step_[0], 0)
    assert np.isfinite(step_).all()
    assert (np.abs(step_[1]).max() > 0) == (which == "own")


def test_opposite_drifts_may_cancel_and_the_step_is_zero():
    D = theta0()
    b = float(gompertz(np.array(math.pi), 1.0))
    own = -b / (1 - b) * D
    assert np.abs(personal_step(own[None], D, 1.0, 0.7)).max() < 1e-7


# --- rounds -------------------------------------------------------------------------------------


def test_the_first_round_is_sgd_alone_even_for_a_latecomer():
    clients, program, x = population(), client(), theta0()
    sgd, _ = LocalSteps(lr=0.3, steps=2).release({"theta": x}, clients, None, plan(), noise(0))
    for shared in (np.zeros_like(x), theta0(2)):
        drift, state = program.release(
            received(x, shared), clients, program.init(x, 4), plan(), noise(0)
        )
        np.testing.assert_allclose(drift * 0.3, sgd, rtol=1e-12)
        np.testing.assert_allclose(state.theta, x - sgd, rtol=1e-12)
        np.testing.assert_array_equal(state.drift, drift)


def test_the_drift_is_that_of_sgd_from_after_the_personal_step():
    clients, program, x = population(sizes=(9,)), client(steps=3), theta0()
    before = PFedSOPState(theta0(5)[None], theta0(6)[None], np.array([3]))
    drift, after = program.release(received(x, theta0(2)), clients, before, plan(), noise(0))
    y = before.theta - 0.5 * personal_step(before.drift, theta0(2), 1.5, 0.7)
    total = np.zeros_like(x)
    for _ in range(3):
        g = head.clipped_gradient_sum(y[0], clients[0].data, math.inf) / 9
        y, total = y - 0.3 * g, total + g
    np.testing.assert_allclose(drift[0], total, rtol=1e-12)  # not the personal step's part
    np.testing.assert_allclose(after.theta, y, rtol=1e-12)


@pytest.fixture
def small(small):
    return [*small, "partition.clients=6"]


def experiment(small, *overrides):
    return prepare(parse(compose([*small, *overrides])))


HALF = ["strategy=pfedsop", "participation=0.5", "privacy=none"]


def test_two_rounds_with_half_the_clients_absent_are_as_by_hand(small):
    settings = ["client.batch_size=13", "client.steps=3", "client.lr=0.2"]
    seed = next(  # the two rounds share some clients, and some client takes part in none
        s for s in range(100) if 3 < len({*sets(small, s)[0], *sets(small, s)[1]}) < 6
    )
    e = experiment(small, *HALF, *settings, "rounds=2", f"seed={seed}")
    final = run(e, begin(e), lambda *_: False)

    theta = [e.theta.astype(np.float64) for _ in range(6)]
    drift, steps, shared = [None] * 6, [0] * 6, None
    for present in sets(small, seed):
        sent = []
        for i in present:
            D = e.clients[i].data
            if drift[i] is not None and shared is not None:
                a, b = drift[i].ravel(), shared.ravel()
                phi = math.acos(a @ b / math.sqrt((a @ a) * (b @ b)))
                beta = 1 - math.exp(-math.exp(-(phi - 1)))
                Dp = (1 - beta) * drift[i] + beta * shared
                rule = e.config.strategy
                theta[i] = theta[i] - rule.lr * Dp / (rule.rho + (Dp**2).sum())
            y = theta[i]
            for _ in range(3):
                parts = math.ceil(D.size / 13)
                mine = slice(steps[i] % parts, None, parts)
                x, target = D.x[:, mine].astype(np.float64), D.target[:, mine]
                z = np.exp(y @ x)
                y = y - 0.2 * ((z / z.sum(axis=0) - target) @ x.T) / x.shape[1]
                steps[i] += 1
            drift[i] = (theta[i] - y) / 0.2
            theta[i] = y
            sent.append(drift[i])
        shared = np.mean(sent, axis=0)
    np.testing.assert_allclose(final.clients.theta, theta, rtol=1e-4, atol=1e-5)
    by_hand = [np.zeros_like(e.theta) if D is None else D for D in drift]
    np.testing.assert_allclose(final.clients.drift, by_hand, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(final.server.buffers.drift, shared, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(final.clients.steps, steps)
    np.testing.assert_array_equal(final.server.theta, e.theta)


def sets(small, seed):
    schedule = parse(compose([*small, *HALF, "rounds=2", f"seed={seed}"])).schedule
    return [schedule.present(0).tolist(), schedule.present(1).tolist()]


@pytest.mark.parametrize("strategy", ["pfedsop", "fedavg_finetune", "ditto", "alone"])
def test_models_and_drifts_survive_an_interruption(small, strategy, tmp_path):
    e = experiment(small, f"strategy={strategy}", "participation=0.5", "rounds=6")
    whole = run(e, begin(e), lambda *_: False)
    half = run(e, begin(e), lambda state, G: state.server.t == 3)
    place = RunDir.create(tmp_path / "run", {}, {}, half)
    resumed = run(e, place.restore(begin(e)), lambda *_: False)
    for ours, theirs in zip(
        (*resumed.clients, *resumed.server.buffers),
        (*whole.clients, *whole.server.buffers),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


# --- with a budget ------------------------------------------------------------------------------


def test_every_local_step_is_charged(small):
    assert client(steps=5).disclosure.releases(70) == 350
    config = parse(compose(["strategy=pfedsop", "client.steps=4", "privacy.epsilon=3"]))
    assert config.plan().releases == 280
    assert config.epsilon() <= 3
    assert config.epsilon(35) == config.plan().epsilon(140)


def test_a_private_drift_is_the_sum_of_noisy_gradients():
    clients, program, x = population(), client(steps=3), theta0()
    private = plan(z=4.0, clip=0.5)
    before = PFedSOPState(np.stack([x] * 4), np.stack([theta0(6)] * 4), np.zeros(4, np.int64))
    drift, after = program.release(received(x, theta0(2)), clients, before, private, noise(3))
    for i, D in clients:
        y = before.theta[i] - 0.5 * personal_step(before.drift[i : i + 1], theta0(2), 1.5, 0.7)[0]
        total = 0
        for k in range(3):
            E = 4.0 * 0.5 * noise(3)(i, k).rng.standard_normal(x.shape)
            g = (head.clipped_gradient_sum(y, D, 0.5) + E) / D.size
            y, total = y - 0.3 * g, total + g
        np.testing.assert_allclose(drift[i], total, rtol=1e-10)
        np.testing.assert_allclose(after.theta[i], y, rtol=1e-10)


def test_nothing_that_is_sent_or_remembered_depends_on_the_tuning(small):
    finals = []
    for tuning in ("client.tune_steps=0", "client.tune_steps=50"):
        e = experiment(small, "strategy=pfedsop", "rounds=4", tuning)
        finals.append(run(e, begin(e), lambda *_: False))
    for a, b in zip(finals[0].clients, finals[1].clients, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(finals[0].server.buffers.drift, finals[1].server.buffers.drift)


@pytest.mark.parametrize("strategy", ["pfedsop", "fedavg_finetune"])
def test_a_budget_and_a_batch_size_are_refused_together(strategy):
    with pytest.raises(ConfigError, match="batch_size"):
        parse(compose([f"strategy={strategy}", "client.batch_size=50"]))
    parse(compose([f"strategy={strategy}", "client.batch_size=50", "privacy=none"]))


def test_its_clients_may_not_share_noise():
    with pytest.raises(ConfigError, match="trust=server"):
        parse(compose(["strategy=pfedsop", "aggregation=size", "privacy.trust=aggregate"]))


@pytest.mark.parametrize(
    "override", ["strategy.rho=0", "strategy.sharpness=-1", "client.steps=0", "client.tune_lr=0"]
)
def test_senseless_settings_are_refused(override):
    with pytest.raises(ConfigError, match=override.split("=")[0]):
        parse(compose(["strategy=pfedsop", override]))


def test_the_server_keeps_the_mean_drift_and_no_model():
    rule = PFedSOPRule(lr=0.5, rho=1.0, sharpness=1.0)
    x, G = theta0().astype(np.float32), theta0(2).astype(np.float32)
    state = step(rule, start(rule, x), G, 10)
    np.testing.assert_array_equal(state.theta, x)
    assert state.theta.dtype == np.float32
    np.testing.assert_array_equal(rule.broadcast(state)["drift"], G)


# --- the references -----------------------------------------------------------------------------


def refuse(client, draw):
    raise AssertionError("noise was drawn")


def test_training_alone_sends_nothing_and_costs_nothing(small):
    program, x, clients = Alone(lr=0.3, steps=2), theta0(), population()
    sent, state = program.release({"theta": x}, clients, program.init(x, 4), plan(9.0, 1.0), refuse)
    assert sent.shape == (4, 0)
    assert AloneRule().release_shape(x) == (0,)
    sgd, _ = LocalSteps(lr=0.3, steps=2).release({"theta": x}, clients, None, plan(), noise(0))
    np.testing.assert_allclose(state.theta, x - sgd, rtol=1e-12)
    for privacy in ("privacy=dp", "privacy=none", "privacy.noise_multiplier=3"):
        config = parse(compose(["strategy=alone", privacy]))
        assert config.plan().releases == 0
        assert [config.epsilon(t) for t in (0, 1, 70)] == [0, 0, 0]


def test_training_alone_is_the_same_with_any_budget(small):
    models = []
    for privacy in ("privacy=none", "privacy.epsilon=0.1"):
        e = experiment(small, "strategy=alone", "rounds=3", "client.batch_size=10", privacy)
        models.append(run(e, begin(e), lambda *_: False).clients.theta)
    np.testing.assert_array_equal(*models)


def test_the_server_of_clients_alone_takes_no_learning_rate():
    with pytest.raises(ConfigError, match=r"strategy\.lr: no such key"):
        parse(compose(["strategy=alone", "+strategy.lr=0.5"]))


def test_fine_tuning_is_fedavg_until_the_end():
    program, x, clients = (
        FineTune(lr=0.3, steps=2, tune_lr=0.2, tune_steps=3),
        theta0(),
        population(),
    )
    told = plan(z=2.0, clip=1.0)
    drift, state = program.release({"theta": x}, clients, program.init(x, 4), told, noise(0))
    fedavg, _ = LocalSteps(lr=0.3, steps=2).release({"theta": x}, clients, None, told, noise(0))
    np.testing.assert_allclose(drift, fedavg, rtol=1e-10, atol=1e-14)
    sgd, _ = LocalSteps(lr=0.2, steps=3).release({"theta": x}, clients, None, plan(), noise(0))
    np.testing.assert_allclose(program.personal(x, clients, state), x - sgd, rtol=1e-12)
    untuned = FineTune(lr=0.3, steps=2, tune_lr=0.2, tune_steps=0).personal(x, clients, state)
    np.testing.assert_array_equal(untuned, np.stack([x] * 4))


# --- a whole run --------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["pfedsop", "fedavg_finetune", "ditto", "alone"])
def test_a_run_leaves_a_score_for_every_client(small, strategy, tmp_path):
    values = compose([*small, f"strategy={strategy}", "rounds=3", "participation=0.5"])
    place = run_session(values, tmp_path / "run")
    rows, summary = place.metrics(), place.read_json("summary.json")
    clients = place.read_json("personal.json")
    assert [row["client"] for row in clients] == list(range(6))
    accuracies = np.array([row["accuracy"] for row in clients])
    assert summary["accuracy"] == pytest.approx(accuracies.mean())
    assert summary["accuracy_std"] == pytest.approx(accuracies.std())
    assert summary["accuracy_worst_decile"] == pytest.approx(accuracies.min())
    assert {"round", "accuracy", "loss", "epsilon", "seconds", "accuracy_std"} <= rows[-1].keys()
    assert summary["epsilon"] <= 10
    assert (summary["epsilon"] == 0) == (strategy == "alone")
    page = (place.path / "report.html").read_text()
    strips = page.split("<h2>Personal models</h2>")[1].split("</script>")[0]
    assert strips.count('["client ') == 6
    together = tmp_path / "together.html"
    compare.write([place.path, place.path], together)
    assert together.read_text().split("Personal models")[1].count(place.path.name) >= 1
    with np.load(place.path / "personal.npz") as arrays:
        assert arrays["theta"].shape == (6, 3, 6)
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize("strategy", ["pfedsop", "fedavg_finetune", "ditto"])
def test_the_noise_in_the_aggregate_has_the_size_that_is_told(small, strategy):
    few = [f"strategy={strategy}", "rounds=1", "client.steps=3", "client.lr=0.3"]
    loud = ["privacy.clip=1e-3", "privacy.noise_multiplier=1e4"]  # the noise is all there is
    e = experiment(small, *few, *loud)
    seen = []
    final = run(e, begin(e), lambda state, G: seen.append(G))
    told = measure(e, final, seen[0], 0.0)["noise_norm"]
    assert np.linalg.norm(seen[0]) == pytest.approx(told, rel=0.4)  # 18 numbers
