"""Features that stay as a file holds them: the same numbers, made when they are asked for."""

import numpy as np
import pytest

from fedsofim.models import head
from fedsofim.models.coded import Rows
from fedsofim.models.records import Factors

N, F, K = 10_000, 9, 4
KINDS = ["float32", "float16", "uint8"]


def stored(kind, rng):
    """Features as a file holds them, and what they stand for."""
    if kind != "uint8":
        held = rng.standard_normal((N, F)).astype(kind)
        return Rows(held), held.astype(np.float32)
    held = rng.integers(0, 256, (N, F), dtype=np.uint8)
    scale, lo = rng.random(F, np.float32), rng.standard_normal(F, np.float32)
    x = held.astype(np.float32)
    x *= scale
    x += lo
    return Rows(held, scale, lo), x


@pytest.fixture(params=KINDS)
def pair(request):
    """Examples of the same records: arrays, and what becomes arrays in parts."""
    rng = np.random.default_rng(0)
    rows, x = stored(request.param, rng)
    y, some = rng.integers(0, K, N), np.sort(rng.choice(N, 8_400, replace=False))
    return head.examples(x[some], y[some], K), head.examples(rows[some], y[some], K)


def theta_of(*shape):
    return np.random.default_rng(1).standard_normal((*shape, K, F + 1)).astype(np.float32)


def test_all_of_it_is_what_was_made_at_once(pair):
    made, lazy = pair
    assert lazy.lazy
    assert not made.lazy
    for a, b in zip(made[:3], lazy[:3], strict=True):
        assert a.shape == b.shape
        np.testing.assert_array_equal(a, np.asarray(b))
    np.testing.assert_array_equal(made.labels, lazy.labels)
    np.testing.assert_array_equal(made.x[:, 7:99], lazy.x[:, 7:99])
    np.testing.assert_array_equal(made.part(np.array([5, 3])).x, lazy.part(np.array([5, 3])).x)


@pytest.mark.parametrize("stack", [(), (3,)], ids=["head", "stack"])
@pytest.mark.parametrize("few", [False, True], ids=["many", "few"])
def test_gradient_sums_have_the_same_bits(pair, stack, few):
    made, lazy = pair
    if few:  # which the kernel takes together
        labels = made.labels[:50]
        made, lazy = (head.examples(rows, labels, K) for rows in (made.x[:-1].T[:50], first(lazy)))
        assert lazy.lazy
    theta = theta_of(*stack)
    for exact in (False, True) if not stack else (False,):
        np.testing.assert_array_equal(
            made.gradient_sum(theta, 0.7, exact).value, lazy.gradient_sum(theta, 0.7, exact).value
        )


def first(lazy):
    return lazy.x.rows[:50]


def test_a_transform_of_gradients_has_the_same_bits(pair):
    rng = np.random.default_rng(2)
    factors = Factors(*(rng.standard_normal((n, n)).astype(np.float32) for n in (K, F + 1)))
    made, lazy = (D.with_transform(factors) for D in pair)
    np.testing.assert_array_equal(*(D.gradient_sum(theta_of(), 0.7).value for D in (made, lazy)))


@pytest.mark.parametrize("similar", [True, False], ids=["scaled", "turned"])
def test_mapped_records_are_made_when_they_are_asked_for(pair, similar):
    rng = np.random.default_rng(3)
    P = np.eye(F + 1, dtype=np.float32) * np.float32(0.5)
    P[-1, -1] = 1
    P[:-1, -1] = rng.standard_normal(F)
    if not similar:
        P[:-1, :-1] = rng.standard_normal((F, F))
    made, lazy = (D.through(P, exact=False) for D in pair)
    assert lazy.lazy
    assert lazy.through(P, exact=False) is lazy
    np.testing.assert_allclose(made.norm, lazy.norm, rtol=1e-6)
    a, b = (D.gradient_sum(theta_of(), 0.7).value for D in (made, lazy))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(pair[0].x, np.asarray(lazy.through(None).x))
    exact = [D.through(P, exact=True).gradient_sum(theta_of(), 0.7, exact=True) for D in pair]
    np.testing.assert_array_equal(exact[0].value, exact[1].value)


def test_scores_and_sums_of_features_are_the_same(pair):
    made, lazy = pair
    assert made.evaluate(theta_of()) == lazy.evaluate(theta_of())
    np.testing.assert_array_equal(made.predict(theta_of()), lazy.predict(theta_of()))
    np.testing.assert_array_equal(
        made.features.second_moment(1.0).value, lazy.features.second_moment(1.0).value
    )
