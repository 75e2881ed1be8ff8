"""Exact sums: no record moves one by more than is charged, counted in Python's integers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsofim.core.errors import ConfigError
from fedsofim.models import exact_sums, head
from fedsofim.models.records import Factors

FINITE = [0.0, 1e-45, 1e-30, 1e-3, 1.0, 7.3, 1e3, 1e10, 1e30, 3e38]
ANY = [*FINITE, np.inf, np.nan]
CLIPS = [1e-6, 0.1, 1.0, 7.0, 10.0, 1e6]


def moved(a, b):
    """The squared distance of two integer arrays, exactly."""
    return sum((int(p) - int(q)) ** 2 for p, q in zip(a.ravel(), b.ravel(), strict=True))


def numbers(rng, shape, magnitudes):
    signs = rng.choice([-1, 1], shape) * rng.uniform(0.5, 1, shape)
    with np.errstate(over="ignore", invalid="ignore"):
        return (signs * rng.choice(magnitudes, shape)).astype(np.float32)


def hostile(rng, n, features, classes, transform):
    """Records, labels, parameters and a transform with numbers of all sizes, some not finite."""
    x = numbers(rng, (n, features), ANY if rng.random() < 0.5 else FINITE[2:7])
    theta = numbers(rng, (classes, features + 1), FINITE)
    if not transform:
        return x, rng.integers(0, classes, n), theta, None
    U_A = numbers(rng, (features + 1, features + 1), FINITE)
    return (
        x,
        rng.integers(0, classes, n),
        theta,
        Factors(numbers(rng, (classes,) * 2, FINITE), U_A),
    )


def exact(x, y, classes, theta, clip, factors=None):
    data = head.examples(x, y, classes)
    return (data if factors is None else data.with_transform(factors)).gradient_sum(
        theta, clip, True
    )


def vectors(x, y, classes, theta, clip, factors=None):
    """Each record's two integer vectors."""
    data = head.examples(x, y, classes)
    B, unit = exact_sums.grid(clip, exact_sums.GRADIENT_BITS)
    return exact_sums.contributions(theta, data.x, data.target, B, unit, factors)


@settings(max_examples=150)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(2, 6),
    st.booleans(),
    st.sampled_from(CLIPS),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_neighbour_moves_a_sum_beyond_what_is_charged(seed, n, features, classes, bent, clip):
    rng = np.random.default_rng(seed)
    x, y, theta, factors = hostile(rng, n, features, classes, bent)
    S = exact(x, y, classes, theta, clip, factors)
    B = int(S.bound)
    assert B * S.unit <= clip < (B + 1) * S.unit
    other, at = x.copy(), rng.integers(n)
    other[at] = numbers(rng, features, ANY)
    label = y.copy()
    label[at] = rng.integers(classes)
    replaced = exact(other, label, classes, theta, clip, factors)
    removed = exact(np.delete(x, at, 0), np.delete(y, at), classes, theta, clip, factors)
    assert moved(S.value, replaced.value) <= (2 * B) ** 2
    assert moved(S.value, removed.value) <= B**2


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(2, 70), st.booleans())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_records_integers_do_not_know_the_others(seed, n, bent):
    rng = np.random.default_rng(seed)
    features, classes = int(rng.integers(1, 70)), int(rng.integers(2, 12))
    x, y, theta, factors = hostile(rng, n, features, classes, bent)
    a, b = vectors(x, y, classes, theta, 1.0, factors)
    order = rng.permutation(n)[: rng.integers(1, n + 1)]
    for rows in (order, np.arange(n)[:: rng.integers(1, 4)], [int(rng.integers(n))]):
        fewer_a, fewer_b = vectors(x[rows], y[rows], classes, theta, 1.0, factors)
        np.testing.assert_array_equal(fewer_a, a[:, rows])
        np.testing.assert_array_equal(fewer_b, b[:, rows])
    S = exact(x, y, classes, theta, 1.0, factors).value
    whole = [[sum(int(p) * int(q) for p, q in zip(r, c, strict=True)) for c in b] for r in a]
    assert S.tolist() == whole


@pytest.mark.parametrize("transform", [False, True])
@pytest.mark.parametrize("clip", [0.1, 3.0, 1e4])
@pytest.mark.parametrize("features", [8, 64, 300])
def test_the_sum_is_that_of_clipped_gradients(rng, transform, clip, features):
    n, classes = 1500, 7
    x, y = rng.normal(size=(n, features)), rng.integers(0, classes, n)
    theta, factors = 0.3 * rng.normal(size=(classes, features + 1)), None
    if transform:
        factors = Factors(
            rng.normal(size=(classes,) * 2), rng.normal(size=(features + 1,) * 2) / features
        )
    S = exact(x.astype(np.float32), y, classes, theta, clip, factors)
    data = head.examples(x, y, classes)
    reference = (
        (data if factors is None else data.with_transform(factors)).gradient_sum(theta, clip).value
    )
    # A record's part is off by 1e-4 of it at most; these errors have no common direction.
    error = np.linalg.norm(S.value * S.unit - reference)
    assert error <= 1e-4 * np.linalg.norm(reference) + 1e-5 * clip * math.sqrt(n)


@pytest.mark.parametrize(("power", "chunks"), [(15, 13), (17, 100), (19, 400)])
def test_a_million_records_add_up_exactly(power, chunks):
    """Neighbours whose float32 sums differ by up to 11 C: small records that round away, or not."""
    clip, size = 1e6, head.CHUNK
    first = (1 << power) + (-(1 << power) % size)
    x = np.zeros((first + chunks * size, 1), np.float32)
    x[1 : 1 << power] = -(2.0**20)
    x[first::size] = 1.8 * 2.0 ** (power + 19 - 24)
    y, theta = np.zeros(len(x), int), np.zeros((2, 2), np.float32)
    pair = []
    for value in (-1.414213e6, 1.414213e6):
        x[0] = value
        pair.append(head.examples(x.copy(), y, 2))
    a, b = (data.gradient_sum(theta, clip, True) for data in pair)
    assert moved(a.value, b.value) <= (2 * int(a.bound)) ** 2
    assert moved(a.value, b.value) >= (1.99 * int(a.bound)) ** 2  # as hard as it gets
    fast, other = (data.gradient_sum(theta, clip).value.astype(float) for data in pair)
    if power > 15:
        assert np.linalg.norm(fast - other) > 2.01 * clip  # what a simulation still does


@pytest.mark.parametrize("spread", [9.9e3, 1e8, 1e20])
@pytest.mark.parametrize("n", [2000, 20_000])
def test_a_hostile_transform_magnifies_nothing(spread, n):
    worst, fast = 0.0, 0.0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        Q, _ = np.linalg.qr(rng.normal(size=(21, 21)))
        s = np.ones(21)
        s[0] = 1 / spread
        f = Factors(np.eye(2, dtype=np.float32), ((Q * s) @ Q.T).astype(np.float32))
        d = Q[:-1, 0] / Q[-1, 0]
        x = (d + 1e-4 * rng.normal(size=(n, 20))).astype(np.float32)
        y, theta = np.zeros(n, int), np.zeros((2, 21), np.float32)
        one = head.examples(x, y, 2).with_transform(f)
        x[0], y[0] = -d, 1
        two = head.examples(x, y, 2).with_transform(f)
        a, b = (data.gradient_sum(theta, 1e-3, True) for data in (one, two))
        worst = max(worst, moved(a.value, b.value) / int(a.bound) ** 2)
        p, q = (data.gradient_sum(theta, 1e-3).value.astype(float) for data in (one, two))
        fast = max(fast, np.linalg.norm(p - q) / 1e-3)
    assert 1 < worst <= 4  # squares, over B^2
    if spread == 9.9e3 and n == 20_000:
        assert fast > 4  # what transforming the whole sum does


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite_contributes_nothing(rng):
    x, y = rng.normal(size=(30, 5)).astype(np.float32), rng.integers(0, 3, 30)
    theta = rng.normal(size=(3, 6)).astype(np.float32)
    x[3, 2], x[7, 0], x[20] = np.nan, np.inf, -np.inf
    good = np.isfinite(x).all(axis=1)
    broken, clean = exact(x, y, 3, theta, 1.0), exact(x[good], y[good], 3, theta, 1.0)
    np.testing.assert_array_equal(broken.value, clean.value)
    assert not exact(x, y, 3, theta * np.nan, 1.0).value.any()


def test_a_saturated_softmax_is_exact(rng):
    x, y = np.eye(4, dtype=np.float32), np.arange(4)
    theta = np.hstack([1e4 * np.eye(4), np.zeros((4, 1))]).astype(np.float32)
    assert not exact(x, y, 4, theta, 1.0).value.any()
    wrong = exact(x, (y + 1) % 4, 4, theta, 1.0)
    assert moved(wrong.value, 0 * wrong.value) > 4 * (0.49 * int(wrong.bound)) ** 2


def test_its_exponential_is_the_exponential():
    x = np.concatenate([np.linspace(-700, 0, 100_001), [-1e-300, -0.5 * math.log(2)]])
    np.testing.assert_allclose(exact_sums._exp(x), np.exp(x), rtol=1e-15)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 30), st.sampled_from([1e-6, 0.3, 5.0, 1e6]))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_neighbour_moves_a_covariance_beyond_what_is_charged(seed, n, bound):
    rng = np.random.default_rng(seed)
    x, y = numbers(rng, (n, 4), ANY if rng.random() < 0.5 else FINITE[2:7]), np.zeros(n, int)
    S = head.examples(x, y, 2).features.second_moment(bound, True, bias=True)
    other = x.copy()
    other[0] = numbers(rng, 4, ANY)
    replaced = head.examples(other, y, 2).features.second_moment(bound, True, bias=True)
    removed = head.examples(x[1:], y[1:], 2).features.second_moment(bound, True, bias=True)
    assert moved(S.value, replaced.value) <= 2 * int(S.bound) ** 2
    assert moved(S.value, removed.value) <= int(S.bound) ** 2
    assert 0.999 * bound**2 < S.bound * S.unit <= bound**2


def test_a_covariance_is_that_of_clipped_features(rng):
    data = head.examples(3 * rng.normal(size=(2000, 12)), np.zeros(2000, int), 2)
    S, fast = (data.features.second_moment(8.0, exact, bias=True) for exact in (True, False))
    assert np.linalg.norm(S.value * S.unit - fast.value) <= 1e-4 * np.linalg.norm(fast.value)
    np.testing.assert_array_equal(S.value, S.value.T)


@pytest.mark.parametrize("clip", [0.0, np.inf, np.nan])
def test_a_grid_needs_a_clip(clip):
    with pytest.raises(ConfigError, match="finite clip"):
        exact_sums.grid(clip, 36)


def test_a_stack_of_heads_is_refused(rng):
    with pytest.raises(ConfigError, match="one head at a time"):
        exact(np.ones((2, 3), np.float32), np.zeros(2, int), 2, np.zeros((2, 2, 4)), 1.0)
