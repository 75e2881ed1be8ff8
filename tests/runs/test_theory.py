"""The paper's theory as it is measured: every number against something else that computes it."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from references import reference
from scipy import optimize, stats

from fedsofim.config.compose import compose
from fedsofim.core.errors import ConfigError
from fedsofim.core.rate import Rate
from fedsofim.engines.local import run as run_local
from fedsofim.federation import deployed
from fedsofim.models.objective import Objective
from fedsofim.runs import session
from fedsofim.runs.bounds import Constants, Young, best_young, gamma, gap_bounds, young_for
from fedsofim.runs.evaluation import noise_norm
from fedsofim.runs.experiment import begin, prepare
from fedsofim.runs.theory import Theory
from fedsofim.strategies.rule import Descent
from fedsofim.strategies.sofim import Sofim

torch = reference("torch")


def loss_in_torch(experiment, l2, even=True):
    """F as autograd sees it: a mean of the clients' mean losses, and the penalty."""
    sizes = [client.data.size for client in experiment.clients]

    def F(flat):
        theta = flat.reshape(experiment.theta.shape)
        total = l2 / 2 * (theta**2).sum()
        for (_, data), size in zip(experiment.clients, sizes, strict=True):
            x, y = torch.from_numpy(data.x.T).double(), torch.from_numpy(data.target.argmax(0))
            share = 1 / len(sizes) if even else size / sum(sizes)
            total = total + share * torch.nn.functional.cross_entropy(x @ theta.T, y)
        return total

    return F


def objective_of(experiment, l2, even=True):
    sizes = np.array([client.data.size for client in experiment.clients])
    shares = np.full(len(sizes), 1 / len(sizes)) if even else sizes / sizes.sum()
    return Objective.of([client.data for client in experiment.clients], shares, l2)


@pytest.mark.parametrize("even", [True, False])
def test_the_objective_and_its_derivatives_are_autograds(config_of, small, rng, even):
    experiment = prepare(config_of(*small))
    objective, F = objective_of(experiment, 0.3, even), loss_in_torch(experiment, 0.3, even)
    theta, V = rng.normal(size=(2, *experiment.theta.shape))
    flat = torch.tensor(theta.ravel(), requires_grad=True)
    value, gradient = objective.gradient(theta)
    assert value == pytest.approx(float(F(flat.detach())), rel=1e-12)
    (expected,) = torch.autograd.grad(F(flat), flat)
    np.testing.assert_allclose(gradient.ravel(), expected, rtol=1e-9, atol=1e-12)
    H = torch.autograd.functional.hessian(F, flat.detach()).numpy()
    product = objective.product(objective.probabilities(theta), V)
    np.testing.assert_allclose(product.ravel(), H @ V.ravel(), rtol=1e-9, atol=1e-10)


def test_smoothness_bounds_every_hessian_and_is_reached(config_of, small, rng):
    experiment = prepare(config_of(*small))
    F, L = loss_in_torch(experiment, 0.1), objective_of(experiment, 0.1).smoothness()
    largest = []
    for scale in (0.0, 0.3, 3.0):
        theta = torch.tensor(scale * rng.normal(size=experiment.theta.size))
        H = torch.autograd.functional.hessian(F, theta).numpy()
        eigenvalues = np.linalg.eigvalsh(H)
        assert eigenvalues[0] == pytest.approx(0.1)  # mu: along the softmax's own directions
        largest.append(eigenvalues[-1])
    assert max(largest) < L
    halves = np.zeros(experiment.theta.shape)
    halves[:2, -1] = 40  # two classes with probability one half each, for every record
    H = torch.autograd.functional.hessian(F, torch.tensor(halves.ravel())).numpy()
    assert np.linalg.eigvalsh(H)[-1] == pytest.approx(L)


@pytest.mark.parametrize("l2", [0.0, 0.01])
def test_newtons_minimum_is_that_of_scipy(config_of, small, l2):
    experiment = prepare(config_of(*small))
    objective = objective_of(experiment, l2)
    shape = experiment.theta.shape

    def both(flat):
        value, gradient = objective.gradient(flat.reshape(shape))
        return value, gradient.ravel()

    found = optimize.minimize(both, np.zeros(experiment.theta.size), jac=True, tol=1e-12)
    best = objective.minimise(experiment.theta)
    assert best.value == pytest.approx(found.fun, abs=1e-7)
    assert best.value <= found.fun + 1e-8
    assert best.decrement <= 1e-9


def test_the_best_young_parameters_are_a_search_s(rng):
    for _ in range(20):
        base, clipping, noise, rho = rng.exponential(size=4)

        def floor(logs, base=base, clipping=clipping, noise=noise, rho=rho):
            one, two = np.exp(logs)
            c = 1 / rho - (one + two) / 2
            return (base + clipping / one + noise / two) / c if c > 0 else np.inf

        ours = best_young(base, clipping, noise, rho)
        start = np.log(np.array([0.3, 0.3]) / rho)
        found = optimize.minimize(floor, start, method="Nelder-Mead", options={"xatol": 1e-10})
        assert floor(np.log(ours)) <= found.fun * (1 + 1e-6)


def test_the_floor_is_where_the_bound_comes_to_rest():
    k = Constants(d=10, L=4.0, G_max=2.0, zeta_max=0.3, nu2=1e-3, G_0=5.0)
    how, eta, mu = Descent(rho=2.0, beta=0.9, coupled=True), 0.1, 0.2
    young = young_for(k, how, eta)
    c, terms = young.coefficient(2.0), gamma(k, how, eta, young)
    # Eq. (20), written out.
    M2 = 25 + 0.1 * 0.01
    expected = (
        eta * 4 * M2 / 4
        + eta * 0.09 / (2 * young.tau1 * 4)
        + eta * 0.01 / (2 * young.tau2 * 4)
        + 4 * eta**2 / 8 * (25 + 0.01)
    )
    assert terms.total == pytest.approx(expected)
    rounds = 4000
    *_, last = gap_bounds(1.0, [terms.total] * rounds, [eta] * rounds, mu, c)
    assert last == pytest.approx(terms.total / (2 * mu * eta * c))  # Eq. (22)
    plain = gamma(k, Descent(), eta, Young(0.5, 0.0))  # Lemma 4.25
    assert plain.total == pytest.approx(eta * 0.09 / 1.0 + 4 * eta**2 / 2 * (25 + 0.01))


@pytest.fixture
def measured(tmp_path, small):
    def start(*overrides, name="run"):
        values = compose([*small, "output.theory=true", *overrides])
        path = session.run(values, tmp_path / name).path
        rows = [json.loads(line) for line in (path / "theory.jsonl").read_text().splitlines()]
        return path, rows, json.loads((path / "theory.json").read_text())

    return start


GRADIENT = ("strategy.direction=gradient", "strategy.lr=0.5", "strategy.rho=4", "strategy.l2=0.05")


def test_rows_are_what_the_formulas_say(measured, config_of, small):
    _, rows, _ = measured(*GRADIENT, "privacy.clip=1")
    config = config_of(*small, *GRADIENT, "privacy.clip=1")
    experiment, seen = prepare(config), []
    run_local(experiment, begin(experiment), lambda state, G: seen.append((state.server, G)))
    before, M = begin(experiment).server, 0
    F = loss_in_torch(experiment, 0.05)
    for row, (after, G) in zip(rows, seen, strict=True):
        theta = torch.tensor(before.theta.astype(float).ravel(), requires_grad=True)
        value = F(theta)
        (gradient,) = torch.autograd.grad(value, theta)
        gradient = gradient.numpy()
        assert row["objective"] == pytest.approx(float(value.detach()), rel=1e-9)
        assert row["gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-7)
        clipped = clipped_mean(experiment, before.theta, 1.0) + 0.05 * before.theta.ravel()
        assert row["clip_bias"] == pytest.approx(np.linalg.norm(clipped - gradient), rel=1e-4)
        G = G.ravel() + 0.05 * before.theta.ravel()
        assert row["noise_norm"] == pytest.approx(np.linalg.norm(G - clipped), rel=1e-4)
        beta = config.strategy.beta
        M = beta * M + (1 - beta) * G
        assert row["momentum_norm"] == pytest.approx(np.linalg.norm(M), rel=1e-5)
        H = np.linalg.inv(np.outer(M, M) + 4 * np.eye(M.size))  # dense
        assert row["condition"] == pytest.approx(np.linalg.cond(H), rel=1e-6)
        step = H @ G
        cosine = step @ gradient / np.linalg.norm(step) / np.linalg.norm(gradient)
        assert row["cosine_step"] == pytest.approx(cosine, abs=1e-4)
        before = after


def clipped_mean(experiment, theta, clip):
    """The mean of the clients' means of clipped gradients, one record at a time."""
    total = 0
    for _, data in experiment.clients:
        mine = 0
        for x, y in zip(data.x.T.astype(float), data.target.T, strict=True):
            z = theta.astype(float) @ x
            p = np.exp(z - z.max())
            g = np.outer(p / p.sum() - y, x)
            mine = mine + g * min(1, clip / np.linalg.norm(g))
        total = total + mine / data.size / len(experiment.clients)
    return total.ravel()


def test_the_noise_variance_is_that_of_equation_5(measured, config_of, small):
    _, rows, _ = measured("partition=dirichlet")
    experiment = prepare(config_of(*small, "partition=dirichlet"))
    plan, n = experiment.plan, 4
    sizes = np.array([client.data.size for client in experiment.clients])
    # Each client adds the whole noise here, so (C sigma)^2 / n of Eq. (2) is noise_std^2.
    expected = n * plan.noise_std**2 / n**3 * (1 / sizes**2).sum()
    assert rows[0]["noise_variance"] == pytest.approx(expected)


@pytest.mark.parametrize("privacy", ["privacy.epsilon=10", "privacy=none"])
def test_no_run_of_the_analysed_rule_leaves_its_own_bound(measured, privacy):
    """Steps 1 to 6 of the proof hold for every draw, so the recursion bounds this very run."""
    for overrides in (GRADIENT, ("strategy=fedgd", "strategy.lr=0.05", "strategy.l2=0.05")):
        _, _, told = measured(*overrides, privacy, "rounds=30", name=overrides[0])
        assert told["departures"] == []
        strong, pl, still = told["theorems"]
        assert {"4.21", "4.26"} & {strong["theorem"]}
        for theorem in (strong, pl):
            assert 0 < theorem["contraction"] < 1
            assert len(theorem["run"]) == len(theorem["path"]) == 31
            assert all(np.less_equal(theorem["run"], np.array(theorem["path"]) + 1e-9))
            assert all(np.less_equal(theorem["run"], np.array(theorem["bound"]) + 1e-9))
            assert theorem["floor"] == pytest.approx(sum(theorem["terms"].values()))
        assert all(np.less_equal(still["run"], still["bound"]))


def test_without_a_penalty_the_loss_is_not_strongly_convex_and_the_authors_steps_depart(measured):
    _, _, told = measured()
    strong = told["theorems"][0]
    assert "floor" not in strong
    assert "strategy.l2" in strong["why_not"][0]
    assert any("direction=momentum" in why for why in told["departures"])
    _, _, told = measured("strategy=fedadam", name="adam")
    assert told["theorems"] == []


def test_files_and_page_say_that_they_are_not_private(measured):
    path, rows, told = measured(*GRADIENT)
    assert told["note"].startswith("not private: for simulations")
    assert all(row["note"].startswith("not private: for simulations") for row in rows)
    page = (path / "report.html").read_text()
    assert "Not private: for simulations" in page.split("<h2>Theory, measured</h2>")[1]
    for name in ("theory.json", "theory.jsonl"):
        assert f"<li><code>{name}</code>" in page
    metrics = (path / "metrics.jsonl").read_text()
    assert "clip_bias" not in metrics
    assert "clip_bias" not in (path / "summary.json").read_text()


def test_it_changes_no_result_and_survives_a_resume(measured, tmp_path, small):
    path, rows, _ = measured("rounds=6")
    plain = session.run(compose([*small, "rounds=6"]), tmp_path / "plain").path
    same = [np.load(p / "model.npz")["theta"] for p in (path, plain)]
    np.testing.assert_array_equal(*same)
    assert not (plain / "theory.json").exists()
    lines = (path / "theory.jsonl").read_text().splitlines()
    place = session.RunDir.open(path)
    place.rewind(4)
    kept = (path / "theory.jsonl").read_text().splitlines()
    assert kept == lines[:4]
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_a_deployment_has_none_of_it(config_of, small, environment):
    experiment = prepare(config_of(*small))
    for changed in (experiment._replace(deployed=True), experiment._replace(clients=[])):
        with pytest.raises(ConfigError, match="for simulations"):
            Theory(changed)
    with pytest.raises(ConfigError, match="for simulations"):
        deployed.prepare(config_of(*small, "output.theory=true"), None, None, {})
    # What a client loads, at every message, does not hold this code.
    loaded = (
        "import sys, fedsofim.federation.client_app, fedsofim.federation.owner;"
        "sys.exit(any(n in sys.modules for n in ('fedsofim.runs.theory', "
        "'fedsofim.runs.theorems', 'fedsofim.models.objective')))"
    )
    done = subprocess.run([sys.executable, "-c", loaded], env={**os.environ, **environment})
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("strategy=fedavg",), "one clipped gradient a client"),
        (("aggregation=median",), "are about means"),
        (("transform=kfc",), "before the clip"),
    ],
)
def test_what_the_theorems_are_not_about_is_refused(config_of, small, overrides, told):
    with pytest.raises(ConfigError, match=told):
        config_of(*small, "output.theory=true", *overrides)


def test_mapped_records_are_measured_as_they_are_trained_on(measured):
    _, rows, told = measured(
        "transform=centre", "transform.radius=4", "strategy=fedgd", "strategy.l2=0.1"
    )
    assert rows[0]["theta_norm"] == 0
    assert told["theorems"][0]["run_over_bound"] < 1


# Lemma C.1: the average attenuates the noise by (1 - beta) / (1 + beta).


def averaged_noise(beta, rounds, d=6000, nu=0.7, seed=0):
    rng = np.random.default_rng(seed)
    rule = Sofim(rate=Rate(1.0), rho=1.0, beta=beta)
    buffers = rule.init(np.zeros(d))
    for t in range(rounds):
        buffers, _ = rule.update(buffers, nu * rng.standard_normal(d), t, rounds)
    return buffers.M / nu


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("rounds", [1, 4, 200])
def test_lemma_c1_the_average_s_noise_is_accepted_and_other_sizes_are_rejected(beta, rounds):
    M = averaged_noise(beta, rounds)
    exact = (1 - beta) ** 2 * (1 - beta ** (2 * rounds)) / (1 - beta**2)
    assert stats.kstest(M / exact**0.5, "norm").pvalue > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(M / (wrong * exact**0.5), "norm").pvalue < 1e-6
    if rounds == 200:
        assert exact == pytest.approx((1 - beta) / (1 + beta))
    if beta:
        assert stats.kstest(M, "norm").pvalue < 1e-6  # that of one aggregate


def test_lemma_c1_holds_for_what_clients_release(config_of, small):
    """M of a real run, with and without its noise, against nu_t^2 as it is measured."""
    beta, rounds = 0.8, 1500
    common = [*small, f"rounds={rounds}", "strategy.lr=1e-12", f"strategy.beta={beta}"]
    common += ["strategy.bias_correction=false"]

    def momenta(*overrides):
        experiment, seen = prepare(config_of(*common, *overrides)), []
        run_local(
            experiment, begin(experiment), lambda state, G: seen.append(state.server.buffers.M)
        )
        return experiment, np.stack(seen)

    experiment, noisy = momenta()
    _, clean = momenta("privacy.noise_multiplier=0")
    noise = (noisy - clean)[60::20]  # far enough apart to be all but independent
    nu = noise_norm(experiment, 0) / experiment.theta.size**0.5
    std = nu * ((1 - beta) / (1 + beta)) ** 0.5
    assert stats.kstest(noise.ravel() / std, "norm").pvalue > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise.ravel() / (wrong * std), "norm").pvalue < 1e-6


def test_the_condition_follows_warm_up_and_warm_start(rng):
    M = rng.normal(size=(2, 3))
    rule = Sofim(rate=Rate(1.0), rho=0.5, beta=0.9)
    H = np.linalg.inv(np.outer(M, M) + 0.5 * np.eye(6))
    buffers = rule.init(M)._replace(M=M)
    assert rule.describe(buffers, 3)["condition"] == pytest.approx(np.linalg.cond(H))
    assert replace(rule, warmup=5).describe(buffers, 3)["condition"] == pytest.approx(1)
    half = replace(rule, warm_start=6)
    mixed = 0.5 * np.eye(6) / 0.5 + 0.5 * H
    assert half.describe(buffers, 3)["condition"] == pytest.approx(np.linalg.cond(mixed))
    corrected = replace(rule, bias_correction=True).describe(buffers, 3)
    norm = np.linalg.norm(M) / (1 - 0.9**4)
    assert corrected["momentum_norm"] == pytest.approx(norm)
