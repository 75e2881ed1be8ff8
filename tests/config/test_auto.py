"""Settings from public numbers: what they depend on, and what they do not."""

import inspect
import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsofim.config import auto
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError

CIFAR = auto.Sizes(records=50_000, features=64, classes=10)


def budget(**changes):
    given = {"epsilon": 1.0, "delta": 1e-5, "clients": 20, "share": 0.1}
    return auto.Budget(**given | changes)


def test_the_rule_sees_public_numbers_and_nothing_else():
    assert [f.name for f in fields(auto.Sizes)] == ["records", "features", "classes"]
    public = ["epsilon", "delta", "adjacency", "trust", "clients", "share", "part", "sharers"]
    assert [f.name for f in fields(auto.Budget)] == public
    asked = list(inspect.signature(auto.settings_of).parameters)
    assert asked == ["strategy", "sizes", "budget", "rounds", "local_steps"]


def test_the_same_sizes_give_the_same_settings_whatever_the_labels_are(tmp_path, rng):
    chosen = []
    for seed in range(2):
        draw = np.random.default_rng(seed)
        x = draw.normal(size=(300, 4)).astype(np.float32) * 10**seed
        y = np.concatenate([np.arange(3), draw.integers(3, size=297)])
        np.savez(tmp_path / f"{seed}.npz", train_x=x, train_y=y, test_x=x[:9], test_y=y[:9])
        given = ["dataset=npz", f"dataset.path={tmp_path}/{seed}.npz", "transform.radius=3"]
        values = compose(["settings=auto", *given])
        chosen.append([values[key] for key in ("strategy", "privacy", "rounds", "note")])
    assert chosen[0] == chosen[1]


def test_the_design_s_own_numbers():
    """By hand, from the formulas of docs/geometry.md."""
    chosen = auto.choose(CIFAR, budget(), steps=20, momentum=True)
    mu = 0.268051 * math.sqrt(0.9)
    C = math.sqrt(65) / 4
    sigma = 2 * C * math.sqrt(20) * math.sqrt(20) / (mu * 50_000)
    assert chosen.clip == pytest.approx(C)
    assert chosen.noise == pytest.approx(sigma, rel=1e-5)
    assert chosen.lr == pytest.approx(1.25 / (sigma * math.sqrt(20 * 65)), rel=1e-5)
    assert chosen.beta == pytest.approx(0.8)
    assert chosen.floor == pytest.approx(sigma**2 * 650 / 9, rel=1e-5)


@pytest.mark.parametrize("K", [2, 3, 20])
def test_no_record_moves_its_own_margin_by_more_than_a_sixteenth_of_log_k(K):
    """Hardly any noise, few records: what limits the rate is how far one may pull the model."""
    few = auto.Sizes(records=1500, features=64, classes=K)
    chosen = auto.choose(few, budget(epsilon=1e3), steps=20, momentum=False)
    assert not chosen.edge
    # Twenty steps along the clipped gradient that a record has at first, and its margin then.
    z, r = np.full(65, 1.0), np.full(K, 1 / K) - np.eye(K)[0]
    g = np.outer(r, z)
    g *= chosen.clip / np.linalg.norm(g)
    logits = -chosen.lr * 20 / 1500 * g @ z
    assert logits[0] - logits[1] == pytest.approx(math.log(K) / 16)
    many = auto.choose(CIFAR, budget(epsilon=1e3), steps=20, momentum=False)
    assert many.edge
    assert many.lr == pytest.approx(20)  # Newton's rate, 2K


def test_sofims_largest_step_is_at_most_twice_that_of_plain_momentum():
    """Where M is nearly 0, a step is lr / rho."""
    few = auto.Sizes(records=4708, features=64, classes=2)
    ratios = []
    for epsilon in (1e-3, 0.5, 1, 10, 1e3):
        _, settings = auto.settings_of("sofim", few, budget(epsilon=epsilon), rounds=20)
        lr, rho = (settings["momentum"][name][0] for name in ("lr", "rho"))
        plain = auto.choose(few, budget(epsilon=epsilon), steps=20, momentum=True).lr
        ratios.append(lr / rho / plain)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == pytest.approx(2, abs=1e-3)
    assert ratios[-1] == pytest.approx(1.5, abs=1e-3)


@pytest.mark.parametrize(
    ("given", "average"),
    [
        (["strategy=fedgd", "privacy.epsilon=10"], "tail"),  # Newton's rate
        (["strategy=fedavg", "privacy.epsilon=10"], "tail"),
        (["strategy=fedgd", "privacy.epsilon=1"], "none"),  # noise limits the rate
        (["strategy=sofim", "privacy.epsilon=10"], "none"),  # momentum averages
        (["strategy=fedgd", "privacy.epsilon=10", "average=ema"], "ema"),  # what is given counts
    ],
)
def test_descent_at_newtons_rate_is_judged_by_its_tail(given, average):
    assert compose(["settings=auto", *given])["average"] == average


def test_without_noise_the_rate_is_bounded_all_the_same():
    many = auto.Sizes(records=10**6, features=64, classes=10)
    chosen = auto.choose(many, budget(epsilon=math.inf), steps=20, momentum=True)
    assert chosen.noise == 0
    assert chosen.lr == pytest.approx(40)


@pytest.mark.parametrize("changes", [{}, {"adjacency": "add-remove"}, {"trust": "aggregate"}])
def test_the_noise_is_that_of_the_plan(changes):
    """What the rule reckons with is what clients then add: size-weighted, all present."""
    more = [f"privacy.{key}={value}" for key, value in changes.items()]
    config = parse(compose(["settings=auto", "privacy.epsilon=1", *more]))
    plan, per_client = config.plan(), 2500
    mean = plan.client_noise_multiplier * plan.clip / per_client / math.sqrt(20)
    assert budget(**changes).noise(plan.clip, 20, 50_000) == pytest.approx(mean, rel=1e-9)


@given(
    st.floats(0.01, 100),
    st.integers(10, 10**7),
    st.integers(1, 4096),
    st.integers(2, 1000),
    st.sampled_from(["server", "aggregate"]),
    st.sampled_from(auto.STRATEGIES),
    st.integers(1, 200),
)
def test_settings_are_finite_and_never_exceed_newtons_rate(
    epsilon, records, features, classes, trust, strategy, rounds
):
    sizes = auto.Sizes(records=records, features=features, classes=classes)
    clip, settings = auto.settings_of(
        strategy, sizes, budget(epsilon=epsilon, trust=trust), rounds=rounds
    )
    values = [v for row in settings.get("momentum", settings).values() for v in row]
    assert all(math.isfinite(v) and v >= 0 for v in (clip, *values))
    chosen = auto.choose(sizes, budget(epsilon=epsilon), steps=rounds, momentum=False)
    assert 0 < chosen.lr <= 2 * classes


def test_more_noise_means_smaller_steps():
    rates = [
        auto.choose(CIFAR, budget(epsilon=e), steps=20, momentum=True).lr for e in (0.1, 1, 10)
    ]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_a_run_says_what_was_chosen_and_from_what():
    config = parse(compose(["settings=auto", "privacy.epsilon=1"]))
    assert config.rounds == 20
    assert config.transform.name == "private"
    assert config.aggregation == "size"
    for part in ("clip 2.016", "lr ", "rho ", "50,000 records", "20 clients", "epsilon 1"):
        assert part in config.note
    assert "\n" not in config.note


def test_what_is_given_counts_and_the_rest_follows():
    values = compose(["settings=auto", "rounds=40", "strategy.lr=0.7", "privacy.clip=3"])
    assert values["rounds"] == 40
    assert values["strategy"]["lr"] == 0.7
    assert values["privacy"]["clip"] == 3
    assert values["strategy"]["beta"] == pytest.approx(0.9)
    assert compose(["settings=auto", "transform=centre"])["transform"]["name"] == "centre"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["strategy=ftrl"], "no rule for strategy=ftrl; use one of sofim"),
        (["strategy=fedfc"], "no rule for strategy=fedfc"),
        (["transform=none"], "use transform=private, not none"),
        (["strategy.direction=gradient"], "use momentum"),
        (["privacy.noise_multiplier=3"], "give privacy.epsilon"),
    ],
)
def test_where_there_is_no_rule_it_says_so(given, message):
    with pytest.raises(ConfigError, match=message):
        compose(["settings=auto", *given])


def test_published_settings_stay_the_default():
    values = compose([])
    assert values["rounds"] == 70
    assert values["privacy"]["clip"] == 10
    assert values["aggregation"] == "uniform"
    assert values["transform"]["name"] == "none"
    assert "note" not in values


def test_a_lower_threshold_is_more_noise_for_the_rule():
    """Of twenty clients five must be left: four times the variance in a sum of all."""
    few, all_of_them = (budget(trust="aggregate", sharers=n) for n in (5, 20))
    assert few.noise(1.0, 20, 50_000) == pytest.approx(2 * all_of_them.noise(1.0, 20, 50_000))
    assert all_of_them.noise(1.0, 20, 50_000) == budget(trust="aggregate").noise(1.0, 20, 50_000)
