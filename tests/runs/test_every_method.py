"""What holds for every method."""

import numpy as np
import pytest

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.engines.local import run
from fedsofim.privacy.mechanism import seeded
from fedsofim.runs.directory import RunDir
from fedsofim.runs.evaluation import measure
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies import STRATEGIES
from fedsofim.strategies.rule import start


def experiment(small, *overrides):
    more = ["transform.radius=4"] if "strategy=ridge" in overrides else []
    return prepare(parse(compose([*small, *overrides, *more])))


def assert_same_state(a, b):
    """Bit for bit, in all that server and clients remember."""
    for ours, theirs in zip(
        (a.server.theta, *a.server.buffers, *a.clients),
        (b.server.theta, *b.server.buffers, *b.clients),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_learns_without_privacy(small, strategy):
    e = experiment(small, f"strategy={strategy}", "privacy=none", "rounds=60")
    rows = []

    def on_round(state, G):
        if state.server.t > 0:
            rows.append(measure(e, state, G, 0.0))
        return False

    final = run(e, begin(e), on_round)
    assert final.server.theta.dtype == np.float32
    assert final.server.theta.shape == e.theta.shape
    assert strategy == "ridge" or rows[-1]["loss"] < 0.5 * rows[0]["loss"]  # it learns at once
    assert rows[-1]["accuracy"] > 0.9


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_same_seed_same_result_and_inputs_untouched(small, strategy):
    finals = []
    for _ in range(2):
        e = experiment(small, f"strategy={strategy}", "rounds=4")
        first = e.theta.copy()
        finals.append(run(e, begin(e), lambda *_: False))
        np.testing.assert_array_equal(e.theta, first)
    assert_same_state(*finals)
    other = experiment(small, f"strategy={strategy}", "rounds=4", "seed=1")
    theta = run(other, begin(other), lambda *_: False).server.theta
    assert not np.array_equal(finals[0].server.theta, theta)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_resumes_from_a_checkpoint_bit_for_bit(small, strategy, tmp_path):
    e = experiment(small, f"strategy={strategy}", "rounds=7")
    whole = run(e, begin(e), lambda *_: False)
    half = run(e, begin(e), lambda state, G: state.server.t == 3)
    place = RunDir.create(tmp_path / "run", {}, {}, half)
    resumed = run(e, place.restore(begin(e)), lambda *_: False)
    assert_same_state(resumed, whole)
    assert resumed.server.t == 7


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_clients_at_once_equals_each_alone(small, strategy):
    e = experiment(small, f"strategy={strategy}", "rounds=3")
    program, rule = e.config.client, e.config.strategy
    received = rule.broadcast(start(rule, e.theta))
    noise = seeded(0, 0)
    together, _ = program.release(
        received, e.clients, program.init(e.theta, len(e.clients)), e.plan, noise
    )
    for i, client in enumerate(e.clients):
        alone, _ = program.release(received, [client], program.init(e.theta, 1), e.plan, noise)
        np.testing.assert_array_equal(alone[0], together[i])
