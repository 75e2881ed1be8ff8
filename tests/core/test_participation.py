"""Who takes part, and what that costs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arrays import put, take
from fedsofim.core.errors import ConfigError
from fedsofim.core.participation import Schedule
from fedsofim.engines.local import run
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies import STRATEGIES

schedules = st.builds(
    Schedule,
    clients=st.integers(1, 40),
    fraction=st.floats(0.01, 1.0),
    seed=st.integers(0, 1000),
    rounds=st.integers(1, 30),
)


@given(schedules)
def test_a_round_has_the_same_number_of_different_clients(schedule):
    for t in range(schedule.rounds):
        present = schedule.present(t)
        assert len(present) == schedule.size >= 1
        assert (np.diff(present) > 0).all()
        assert present.min() >= 0
        assert present.max() < schedule.clients
        np.testing.assert_array_equal(present, schedule.present(t))


@given(schedules)
def test_the_busiest_client_is_counted(schedule):
    counts = np.zeros(schedule.clients, int)
    assert schedule.busiest(0) == 0
    for t in range(schedule.rounds):
        counts[schedule.present(t)] += 1
        assert schedule.busiest(t + 1) == counts.max()


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_a_senseless_fraction_is_refused(fraction):
    with pytest.raises(ConfigError, match="participation"):
        Schedule(clients=5, fraction=fraction, seed=0, rounds=3)


def test_every_method_sees_the_same_clients():
    able = [s for s in STRATEGIES if s not in ("scaffold", "ftrl")]
    configs = [parse(compose([f"strategy={s}", "participation=0.3"])) for s in able]
    seen = [[c.schedule.present(t).tolist() for t in range(5)] for c in configs]
    assert all(rounds == seen[0] for rounds in seen)
    assert len({tuple(clients) for clients in seen[0]}) > 1


@pytest.mark.parametrize("strategy", ["scaffold", "ftrl"])
def test_methods_that_need_everyone_say_so(strategy):
    with pytest.raises(ConfigError, match=f"participation=0.5.*{strategy}.*every round"):
        parse(compose([f"strategy={strategy}", "participation=0.5"]))


def test_a_record_is_charged_for_its_clients_rounds_without_amplification():
    everyone = parse(compose(["strategy=fedgd"]))
    some = parse(compose(["strategy=fedgd", "participation=0.2"]))
    most = some.schedule.busiest(70)
    assert 14 <= most < 70
    assert some.plan().releases == most
    assert some.plan().noise_multiplier < everyone.plan().noise_multiplier
    assert some.epsilon() <= 10
    same = parse(compose(["strategy=fedgd", f"rounds={most}"]))
    assert some.plan().noise_multiplier == same.plan().noise_multiplier
    spends = [some.epsilon(t) for t in range(71)]
    assert spends == sorted(spends)
    assert spends[-1] == some.epsilon()


def test_those_who_take_part_carry_the_shared_noise():
    config = parse(
        compose(
            ["strategy=fedgd", "participation=0.25", "aggregation=size", "privacy.trust=aggregate"]
        )
    )
    plan = config.plan()
    assert plan.sharers == 5
    assert plan.client_noise_multiplier * 5**0.5 == pytest.approx(plan.noise_multiplier)


def test_only_participants_are_asked_and_change():
    overrides = ["strategy=pfedsop", "participation=0.25", "rounds=1", "partition.clients=8"]
    e = prepare(parse(compose(overrides)))
    before = begin(e)
    after = run(e, before, lambda *_: False)
    present = e.config.schedule.present(0)
    absent = np.setdiff1d(np.arange(8), present)
    for old, new in zip(before.clients, after.clients, strict=True):
        np.testing.assert_array_equal(old[absent], new[absent])
    assert (after.clients.steps[present] == e.config.client.steps).all()
    np.testing.assert_allclose(
        after.server.buffers.drift, after.clients.drift[present].mean(axis=0), rtol=1e-6
    )


def test_take_and_put_leave_their_input_alone():
    from fedsofim.clients.alone import AloneState

    state = AloneState(np.arange(12.0).reshape(4, 3), np.arange(4))
    some = np.array([1, 3])
    changed = put(state, some, AloneState(-take(state, some).theta, np.array([9, 9])))
    np.testing.assert_array_equal(state.theta, np.arange(12.0).reshape(4, 3))
    np.testing.assert_array_equal(changed.theta[[0, 2]], state.theta[[0, 2]])
    np.testing.assert_array_equal(changed.theta[some], -state.theta[some])
    np.testing.assert_array_equal(changed.steps, [0, 9, 2, 9])
