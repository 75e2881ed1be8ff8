"""Runs with the noise of deployed clients: the same training, hidden to the last bit."""

import numpy as np
import pytest
from scipy.stats import kstest

from fedsofim.clients import Client
from fedsofim.clients.tree import Tree
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines.local import run
from fedsofim.engines.stacked import run as run_stacked
from fedsofim.engines.stacked import stack_key
from fedsofim.models import head
from fedsofim.privacy.exact import ExactNoise
from fedsofim.privacy.plan import Privacy
from fedsofim.runs.directory import RunDir
from fedsofim.runs.evaluation import measure
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies import STRATEGIES

EXACT = "privacy.noise=exact"


def trained(*overrides):
    e = prepare(parse(compose(overrides)))
    return e, run(e, begin(e), lambda *_: False)


def accuracy(*overrides):
    e, final = trained(*overrides)
    return measure(e, final, final.server.theta, 0.0)["accuracy"]


def learned(state):
    """The parameters; of a personal method each client's."""
    return np.array(getattr(state.clients, "theta", state.server.theta))


@pytest.mark.parametrize(
    "strategy",
    [
        *sorted(STRATEGIES.keys() - {"ridge"}),
        "sofim dataset=cifar10 transform=kfc transform.count=64",
    ],
)
def test_without_noise_exact_sums_train_the_same_model(small, strategy):
    """In a few rounds: the sums differ by 1e-5 of the clip and rounding does not grow."""
    strategy, *more = strategy.split()
    given = ["partition.clients=5", *more] if more else small
    few = [*given, f"strategy={strategy}", "rounds=4", "privacy.noise_multiplier=0"]
    (e, fast), (_, exact) = trained(*few), trained(*few, EXACT)
    a, b = learned(fast), learned(exact)
    np.testing.assert_allclose(b, a, rtol=0, atol=2e-3 * np.abs(a - e.theta).max())
    assert strategy == "alone" or not np.array_equal(a, b)


@pytest.mark.parametrize("strategy", ["sofim", "ftrl", "fedfc", "scaffold", "pfedsop"])
def test_noisy_runs_go_on_after_a_checkpoint_and_are_never_the_same(small, strategy, tmp_path):
    e = prepare(parse(compose([*small, f"strategy={strategy}", "rounds=5", EXACT])))
    half = run(e, begin(e), lambda state, G: state.server.t == 3)
    place = RunDir.create(tmp_path / "run", {}, {}, half)
    finals = [run(e, place.restore(begin(e)), lambda *_: False) for _ in range(2)]
    assert [final.server.t for final in finals] == [5, 5]
    assert not np.any(learned(finals[0]) == learned(finals[1]))


def test_a_tree_remembers_its_noise_in_integers(rng):
    """After eight rounds all noise but one node's has cancelled, to the last unit."""
    n, size, rounds = 40, 10, 8
    x, y = rng.normal(size=(size, 5)).astype(np.float32), rng.integers(0, 4, size)
    clients = [Client(i, head.examples(x, y, 4)) for i in range(n)]
    theta, program = np.zeros((4, 6), np.float32), Tree(rounds=rounds)
    plan = Privacy(epsilon=1.0, delta=1e-5, clip=1.0, noise_multiplier=50.0).plan(
        releases=program.disclosure.releases(rounds), clients=n, aggregation="uniform"
    )
    memory, total = program.init(theta, n), np.zeros((n, 4, 6))
    for _ in range(rounds):
        sent, memory = program.release(
            {"theta": theta}, clients, memory, plan, lambda *_: ExactNoise()
        )
        total += sent.astype(float) * size
    assert memory.nodes.dtype == np.int64
    S = clients[0].data.gradient_sum(theta, 1.0, True)
    prefix = (total - rounds * S.value * S.unit) / S.unit
    kept = memory.nodes.sum(axis=1)
    np.testing.assert_allclose(prefix, kept, atol=1e-5 * np.abs(kept).max())
    assert kstest(kept.ravel(), "norm", (0, 50.0 * S.bound)).pvalue > 1e-4
    assert kstest(kept.ravel(), "norm", (0, 75.0 * S.bound)).pvalue < 1e-6


def test_exact_heads_share_no_draws(small):
    configs = [parse(compose([*small, f"strategy.lr={lr}", "rounds=2", EXACT])) for lr in (1, 2)]
    assert stack_key(configs[0]) != stack_key(configs[1])
    finals = [run_stacked([prepare(c)], lambda *_: None)[0].theta for c in configs]
    assert np.isfinite(finals).all()


def test_a_seeded_run_says_nothing_else(config_of):
    noise = config_of().noise(0)
    assert not noise(0, 0).exact
    assert config_of(EXACT).noise(0)(0, 0).exact


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["model=mlp", "privacy.adjacency=add-remove"], "use replace-one"),
        (["privacy.noise=none"], "privacy.noise"),
    ],
)
def test_what_exact_noise_cannot_promise_is_refused(overrides, told):
    with pytest.raises(ConfigError, match=told):
        parse(compose([EXACT, *overrides]))


def test_both_noises_give_the_same_accuracy():
    few = ["partition.clients=5", "rounds=10", "privacy.epsilon=10"]
    fast = [accuracy(*few, f"seed={seed}") for seed in range(2)]
    exact = [accuracy(*few, EXACT, f"seed={seed}") for seed in range(2)]
    assert np.mean(exact) == pytest.approx(np.mean(fast), abs=0.02)
    assert min(exact) > 0.55


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "epsilon"), [("sofim", 10), ("sofim", 1), ("fedavg", 5)])
def test_full_runs_give_the_same_accuracy(strategy, epsilon):
    full = [f"strategy={strategy}", f"privacy.epsilon={epsilon}"]
    fast = [accuracy(*full, f"seed={seed}") for seed in range(3)]
    exact = [accuracy(*full, EXACT, f"seed={seed}") for seed in range(3)]
    assert np.mean(exact) == pytest.approx(np.mean(fast), abs=0.01)
