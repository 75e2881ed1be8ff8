import math

import dp_accounting
import mpmath
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import example, given
from hypothesis import strategies as st
from references import reference

from fedsofim.privacy.accounting import GaussianEvent, compose, delta_of, epsilon_of, mu_of

# SPEC: delta = 1e-5, 70 releases, C = 10, replace-one; epsilon, mu, z, s.
REFERENCE = [
    (0.5, 0.142211, 117.665, 1176.6),
    (1.0, 0.268051, 62.4254, 624.3),
    (5.0, 1.121242, 14.9238, 149.2),
    (10.0, 2.000446, 8.36474, 83.6),
]

epsilons = st.floats(math.log(1e-3), math.log(50)).map(math.exp)
deltas = st.floats(math.log(1e-12), math.log(0.1)).map(math.exp)
mus = st.floats(math.log(1e-3), math.log(30)).map(math.exp)


def exact_delta(mu, epsilon):
    """The formula with 60 digits."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        a = mpmath.ncdf(-epsilon / mu + mu / 2)
        return a - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2)


@pytest.mark.parametrize(("epsilon", "mu", "z", "s"), REFERENCE)
def test_the_papers_reference_values(epsilon, mu, z, s):
    assert mu_of(epsilon, 1e-5) == pytest.approx(mu, rel=1e-5)
    ours = 2 * math.sqrt(70) / mu_of(epsilon, 1e-5)
    assert ours == pytest.approx(z, rel=1e-5)
    assert 10 * ours == pytest.approx(s, rel=1e-3)


@given(mus, st.floats(0, 60))
def test_delta_is_the_formula_to_many_digits(mu, epsilon):
    exact = exact_delta(mu, epsilon)
    if exact > 1e-290:
        assert delta_of(mu, epsilon) == pytest.approx(float(exact), rel=1e-9)


@given(epsilons, deltas)
@example(1e-6, 1e-12)
@example(1e-3, 1e-12)
@example(50.0, 0.1)
@example(1e-6, 0.1)
@example(700.0, 1e-12)
def test_calibration_never_promises_more_than_it_keeps(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert exact_delta(mu, epsilon) <= delta
    assert epsilon_of(mu, delta) <= epsilon


@given(epsilons, deltas)
def test_calibration_wastes_nothing(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert epsilon_of(mu, delta) >= epsilon * (1 - 1e-6)
    assert exact_delta(mu * (1 + 1e-8), epsilon) > delta


@given(mus, deltas)
def test_epsilon_is_kept_and_tight(mu, delta):
    epsilon = epsilon_of(mu, delta)
    assert exact_delta(mu, epsilon) <= delta * (1 + 1e-9)
    if epsilon > 0:
        assert exact_delta(mu, epsilon * (1 - 1e-6)) > delta


@given(mus, deltas, st.floats(1.001, 10))
def test_more_noise_or_more_failure_never_costs_more(mu, delta, factor):
    assert epsilon_of(mu / factor, delta) <= epsilon_of(mu, delta)
    assert epsilon_of(mu, min(0.99, delta * factor)) <= epsilon_of(mu, delta)
    assert mu_of(factor, delta) > mu_of(1.0, delta)


@given(mus, deltas)
def test_it_is_googles_formula(mu, delta):
    theirs = dp_accounting.get_epsilon_gaussian(1 / mu, delta)
    assert epsilon_of(mu, delta) == pytest.approx(theirs, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("epsilon", "mu", "z", "s"), REFERENCE)
def test_googles_numeric_accountant_bounds_it_tightly(epsilon, mu, z, s):
    noise = 2 * math.sqrt(70) / mu_of(epsilon, 1e-5)
    # A replaced record moves the sum by 2C: half the multiplier for a unit of sensitivity.
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise / 2), 70)
    theirs = PLDAccountant().compose(event).get_epsilon(1e-5)
    assert epsilon * (1 - 1e-6) <= theirs <= epsilon * 1.01


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("accountant", ["RDPAccountant", "PRVAccountant"])
@pytest.mark.parametrize(("epsilon", "mu", "z", "s"), REFERENCE)
def test_opacus_bounds_it(accountant, epsilon, mu, z, s):
    bound = getattr(reference("opacus.accountants"), accountant)()
    noise = 2 * math.sqrt(70) / mu_of(epsilon, 1e-5)
    bound.history = [(noise / 2, 1.0, 70)]
    theirs = bound.get_epsilon(1e-5)
    assert epsilon * (1 - 1e-6) <= theirs <= epsilon * 1.25 + 0.05


def test_no_privacy_and_no_release():
    assert mu_of(math.inf, 1e-5) == math.inf
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert delta_of(math.inf, 3.0) == 1.0
    assert delta_of(0.0, 0.0) == 0.0
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(1e-9, 1e-5) == 0.0  # so little that delta alone covers it


@pytest.mark.parametrize("mu", [1e-200, 1e-20, 1e20, 1e200])
def test_extreme_noise_neither_fails_nor_hangs(mu):
    epsilon = epsilon_of(mu, 1e-5)
    assert epsilon == 0 or epsilon > mu
    assert 0 <= delta_of(mu, 1.0) <= 1


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10), st.integers(0, 9)), max_size=5))
def test_events_compose_in_squares(values):
    events = [GaussianEvent(sensitivity, std, count) for sensitivity, std, count in values]
    squares = sum(count * (sensitivity / std) ** 2 for sensitivity, std, count in values)
    assert compose(events) == pytest.approx(math.sqrt(squares))
    apart = [GaussianEvent(e.sensitivity, e.std) for e in events for _ in range(int(e.count))]
    assert compose(apart) == pytest.approx(compose(events))


def test_events_at_the_edges():
    assert compose([]) == 0
    assert GaussianEvent(1.0, 0.0).mu == math.inf
    assert GaussianEvent(math.inf, 0.0).mu == math.inf
    assert GaussianEvent(0.0, 0.0).mu == 0
    assert GaussianEvent(1.0, 0.0, count=0).mu == 0
    assert compose([GaussianEvent(1e200, 1.0), GaussianEvent(1.0, 1.0)]) == pytest.approx(1e200)
    assert compose([GaussianEvent(1.0, 0.0), GaussianEvent(1.0, 1.0)]) == math.inf


def test_a_cost_that_cannot_be_counted_is_no_privacy():
    assert epsilon_of(math.nan, 1e-5) == math.inf
