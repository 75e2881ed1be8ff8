import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedsofim.core.errors import ConfigError
from fedsofim.core.sums import BoundedSum
from fedsofim.privacy.mechanism import SeededNoise, add_gaussian
from fedsofim.privacy.plan import Privacy


def privacy(**changes):
    return Privacy(**{"epsilon": 10.0, "delta": 1e-5, "clip": 10.0} | changes)


def plan(releases=70, clients=20, aggregation="uniform", shares=(), **changes):
    return privacy(**changes).plan(
        releases=releases, clients=clients, aggregation=aggregation, shares=shares
    )


@pytest.mark.parametrize(
    ("epsilon", "z"), [(0.5, 117.665), (1.0, 62.4254), (5.0, 14.9238), (10.0, 8.36474)]
)
def test_the_papers_noise(epsilon, z):
    ours = plan(epsilon=epsilon)
    assert ours.noise_multiplier == pytest.approx(z, rel=1e-5)
    assert ours.noise_std == pytest.approx(10 * z, rel=1e-5)


@given(
    st.floats(math.log(1e-3), math.log(50)).map(math.exp),
    st.floats(math.log(1e-12), math.log(0.009)).map(math.exp),
    st.floats(0, math.log(100_000)).map(lambda x: round(math.exp(x))),
    st.sampled_from(["replace-one", "add-remove"]),
    st.floats(1e-3, 1e3),
    st.sampled_from([(), (0.1,), (0.03, 0.07), (0.9,)]),
)
@example(1e-6, 1e-5, 2, "replace-one", 10.0, ())
def test_what_is_spent_is_within_the_budget_and_uses_it(
    epsilon, delta, releases, adjacency, clip, share
):
    ours = plan(
        releases, epsilon=epsilon, delta=delta, adjacency=adjacency, clip=clip, shares=share
    )
    assert epsilon * (1 - 1e-6) - 1e-9 <= ours.epsilon() <= epsilon


def test_epsilon_grows_with_every_round_from_nothing_to_the_budget():
    spent = [plan().epsilon(t) for t in range(71)]
    assert spent[0] == 0
    assert all(a < b for a, b in itertools.pairwise(spent))
    assert spent[-1] == pytest.approx(10, rel=1e-6)


def test_add_remove_needs_half_the_noise():
    replace, remove = plan(), plan(adjacency="add-remove")
    assert replace.noise_multiplier == pytest.approx(2 * remove.noise_multiplier, rel=1e-12)
    assert replace.epsilon() == pytest.approx(remove.epsilon(), rel=1e-9)


def test_a_given_noise_decides_the_budget():
    ours = plan(noise_multiplier=plan(epsilon=3.0).noise_multiplier)
    assert ours.epsilon() == pytest.approx(3.0, rel=1e-6)
    assert plan(noise_multiplier=0.0).epsilon() == math.inf


def test_no_privacy_means_no_noise():
    ours = plan(epsilon=math.inf, clip=math.inf)
    assert (ours.noise_multiplier, ours.noise_std) == (0, 0)
    assert ours.epsilon() == math.inf
    assert plan(epsilon=math.inf).noise_std == 0


def test_clients_share_the_noise_when_only_the_sum_is_seen():
    server, shared = plan(aggregation="size"), plan(aggregation="size", trust="aggregate")
    assert shared.noise_multiplier == server.noise_multiplier == server.client_noise_multiplier
    assert shared.client_noise_multiplier == pytest.approx(server.noise_multiplier / math.sqrt(20))
    assert shared.epsilon() == server.epsilon()


def test_the_shared_noise_adds_up_to_the_whole(rng):
    ours = plan(aggregation="size", trust="aggregate")
    zero = BoundedSum(np.zeros(20_000), ours.clip)
    total = sum(
        add_gaussian(zero, ours.client_noise_multiplier, SeededNoise(rng)) for _ in range(20)
    )
    assert total.std() == pytest.approx(ours.clip * ours.noise_multiplier, rel=0.03)


def test_shared_noise_is_refused_for_the_mean_of_means():
    with pytest.raises(ConfigError, match=r"aggregation=size.*small client weighs more"):
        plan(aggregation="uniform", trust="aggregate")


def test_a_set_up_and_the_rounds_split_the_budget():
    whole, ours = plan(), plan(shares=(0.05, 0.15))
    first, second, rounds = (event.mu**2 for event in ours.events())
    assert first / (first + second + rounds) == pytest.approx(0.05)
    assert second / (first + second + rounds) == pytest.approx(0.15)
    assert ours.mu() == pytest.approx(whole.mu(), rel=1e-12)
    assert ours.noise_multiplier > whole.noise_multiplier
    assert ours.stage_multiplier(-2, 2.0) == pytest.approx(2.0 / math.sqrt(first))
    assert ours.stage_multiplier(-1, 2.0) == pytest.approx(2.0 / math.sqrt(second))
    for shares in ((0.5, 0.5), (0.0,), (-0.1,), (math.nan,)):
        with pytest.raises(ConfigError, match="must leave some of the budget"):
            plan(shares=shares)


def test_a_delta_that_allows_to_give_a_record_away_is_doubted():
    assert privacy(delta=1e-3).doubt(1000) is None
    assert "privacy.delta=0.001 is above one over the number of records, 0.00099" in str(
        privacy(delta=1e-3).doubt(1010)
    )
    assert privacy(delta=1e-3).doubt(0) is None  # nobody knows how many there are
    assert privacy(delta=1e-3, epsilon=math.inf).doubt(10**6) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": -1.0}, "epsilon=-1.0"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"delta": 0.1}, "delta=0.1"),
        ({"delta": 0.01}, "delta=0.01"),
        ({"delta": -1e-5}, "delta=-1e-05"),
        ({"delta": math.nan}, "delta=nan"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"clip": math.nan}, "clip=nan"),
        ({"clip": math.inf}, "without clipping no noise hides a record"),
        ({"clip": math.inf, "epsilon": math.inf, "noise_multiplier": 1.0}, "without clipping"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0"),
        ({"noise_multiplier": math.inf}, "noise_multiplier=inf"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan"),
    ],
)
def test_senseless_promises_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        privacy(**changes)
