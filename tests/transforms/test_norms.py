"""The usual norms, where nothing public tells them: a release, and what follows from it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.engines.local import run
from fedsofim.engines.stacked import run as run_stacked
from fedsofim.engines.stacked import stack_key
from fedsofim.models.moments import BINS, FIRST, Features, _counted
from fedsofim.runs.evaluation import measure
from fedsofim.runs.experiment import begin, prepare
from fedsofim.transforms.norms import usual_norm

UNKNOWN = ("transform=private", "transform.statistics=null", "aggregation=size")


def ready(*overrides):
    return prepare(parse(compose(overrides)))


def trained(e):
    return run(e, begin(e), lambda *_: False)


def norm_counts(x, exact):
    return Features(x, x[:0]).norm_counts(exact)


def counts_of(x):
    exact = norm_counts(np.asarray(x, np.float32), exact=True)
    return exact.value * exact.unit


@given(st.integers(0, 2**32), st.floats(-5, 5))
def test_counts_are_those_of_the_definition(seed, size):
    x = np.random.default_rng(seed).normal(size=(7, 50)).astype(np.float32) * 10.0**size
    norms = np.linalg.norm(x.astype(np.float32).astype(np.float64), axis=0)
    edges = np.exp2((FIRST + np.arange(BINS + 1)) / 2)
    np.testing.assert_array_equal(counts_of(x), np.histogram(norms, edges)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_bin_is_told_by_bits_as_by_logarithms(dtype):
    """At both sides of every edge, beyond the ends, and what no float should be."""
    edges = np.exp2(FIRST + np.arange(-3.0, BINS + 4)).astype(dtype)
    limits = np.finfo(dtype)
    least = [limits.smallest_subnormal, limits.tiny / 2, limits.tiny, limits.max]
    good = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, np.inf), least])
    bad = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, -1.0, -limits.smallest_subnormal]
    square = np.concatenate([good, bad, bad]).astype(dtype)
    place = np.frexp(good.astype(dtype).astype(np.float64))[1] - 1  # the floor of its logarithm
    expected = np.bincount(np.clip(place - FIRST, 0, BINS - 1), minlength=BINS)
    np.testing.assert_array_equal(_counted(square), expected)
    np.testing.assert_array_equal(_counted(square[::-1]), expected)
    assert _counted(square[:0]).tolist() == [0] * BINS


def test_what_has_no_norm_is_not_counted():
    x = np.zeros((3, 5), np.float32)
    x[0] = [0, np.nan, np.inf, 1e30, 1e-30]
    for exact in (True, False):
        counts = norm_counts(x, exact).value
        assert counts[0] == counts[-1] > 0  # beyond the ends is at the ends
        assert counts.sum() == 2 * counts[0]


def test_exact_counts_are_the_same_in_units_that_noise_fits(rng):
    x = rng.normal(size=(4, 3000)).astype(np.float32)
    exact = norm_counts(x, exact=True)
    assert exact.value.dtype == np.int64
    assert exact.bound * exact.unit == 1
    fast = norm_counts(x, exact=False).value
    assert np.abs(exact.value * exact.unit - fast).sum() <= 2  # at an edge, float32 may round
    assert fast.sum() == 3000


@pytest.mark.parametrize("size", [1e-4, 1.0, 3e4])
def test_the_usual_norm_is_near_the_median_under_noise(rng, size):
    """As of 4,700 records at 20 clients, at epsilon 0.5: a part's noise is an eighth of all."""
    x = rng.normal(size=(64, 4700)) * size
    median = np.median(np.linalg.norm(x, axis=0))
    clear = usual_norm(counts_of(x) / 4700)
    assert clear == pytest.approx(median, rel=0.1)
    noisy = [usual_norm(counts_of(x) / 4700 + rng.normal(size=BINS) / 8) for _ in range(200)]
    assert np.mean(np.abs(np.log2(np.array(noisy) / median)) < 1) > 0.95


def test_noise_alone_gives_some_norm(rng):
    for parts in (np.zeros(BINS), -np.ones(BINS), rng.normal(size=BINS)):
        assert 2.0**-20 <= usual_norm(parts) <= 2.0**20


@pytest.mark.parametrize("transform", ["private", "centre"])
def test_the_unit_of_features_does_not_matter(tmp_path, rng, transform):
    """In units a thousand times as small, features train nearly the same model: other bins of norms
    have other noise."""
    y = rng.integers(3, size=1500)
    x = (np.eye(3, 8)[y] * 2 + rng.normal(size=(1500, 8)) + 5).astype(np.float32)
    models = []
    for unit in (1.0, 1024.0):
        file = tmp_path / f"{unit}.npz"
        np.savez(file, train_x=x * unit, train_y=y, test_x=x[:300] * unit, test_y=y[:300])
        given = ["dataset=npz", f"dataset.path={file}", "partition.clients=4", "rounds=5"]
        more = ["strategy=fedgd", "strategy.lr=1", "privacy.clip=1", "aggregation=size"]
        e = ready(*given, *more, f"transform={transform}", "privacy.epsilon=5")
        state = trained(e)
        models.append((state.server.theta, measure(e, state, None, 0.0)["accuracy"]))
    np.testing.assert_allclose(models[0][0], models[1][0], rtol=0, atol=0.03)
    assert models[0][1] == pytest.approx(models[1][1], abs=0.01)
    assert models[0][1] > 0.7


def test_it_costs_its_share_and_no_more(small):
    e = ready(*small, *UNKNOWN)
    mus = [event.mu for event in e.plan.stage_events()]
    shares = np.array(mus) ** 2 / e.plan.mu() ** 2
    np.testing.assert_allclose(shares, [0.005, 0.03, 0.005, 0.07], rtol=1e-6)
    assert e.plan.epsilon() == pytest.approx(10, rel=1e-6)


def test_a_stack_and_shared_noise_find_the_same_norms(small):
    for trust, apart in (("server", 0.0), ("aggregate", 1e-5)):  # sums of integers, or of floats
        given = [*small, *UNKNOWN, "strategy=fedgd", f"privacy.trust={trust}"]
        experiments = [ready(*given, f"strategy.lr={rate}") for rate in (0.1, 0.4)]
        assert len({stack_key(e.config) for e in experiments}) == 1
        for e, server in zip(experiments, run_stacked(experiments, lambda *_: None), strict=True):
            P = trained(e).server.shared.P
            np.testing.assert_allclose(server.shared.P, P, rtol=apart, atol=apart)


def test_exact_noise_finds_norms_too(small):
    P = trained(ready(*small, *UNKNOWN, "privacy.noise=exact", "privacy.epsilon=100")).server
    fast = trained(ready(*small, *UNKNOWN, "privacy.epsilon=100")).server
    size, other = (math.sqrt(abs(np.linalg.det(s.shared.P[:-1, :-1]))) for s in (P, fast))
    assert size == pytest.approx(other, rel=0.5)


def test_on_real_features_it_is_worth_what_public_statistics_are():
    """Half a percent twice, and the mean without knowing that features are not negative."""
    given = ("settings=auto", "strategy=fedgd", "partition.clients=5", "privacy.epsilon=1")
    scores = []
    for more in ((), ("transform.statistics=null",)):
        e = ready(*given, *more)
        scores.append(measure(e, trained(e), None, 0.0)["accuracy"])
    assert scores[1] > scores[0] - 0.01
