"""Combining releases: what a mean is, and what malicious clients can and can't do to it."""

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.strategies.aggregation import Combined, aggregate, bears, krum, liars, median, trimmed

ROBUST = ["median", "trimmed", "krum"]
ALL = ["uniform", "size", *ROBUST]


@pytest.mark.parametrize("how", ALL)
def test_equal_releases_are_their_own_aggregate(how, rng):
    one = rng.normal(size=(3, 4)).astype(np.float32)
    G = aggregate(np.stack([one] * 7), np.arange(1, 8), how)
    assert G.dtype == np.float32
    np.testing.assert_allclose(G, one, rtol=1e-6)


@pytest.mark.parametrize("how", ALL)
def test_a_stack_of_heads_gives_each_heads_own(how, rng):
    releases, sizes = rng.normal(size=(9, 4, 3, 5)), np.arange(1, 10)
    releases[0, 1] += 100  # another liar in each head
    releases[5, 2] -= 100
    stacked = aggregate(releases, sizes, how, 0.2, stacked=True)
    for s in range(4):
        np.testing.assert_allclose(stacked[s], aggregate(releases[:, s], sizes, how, 0.2))


@pytest.mark.parametrize("how", ALL)
def test_the_inputs_stay_as_they_are_and_their_order_does_not_matter(how, rng):
    releases, sizes = rng.normal(size=(11, 3, 4)), rng.integers(1, 9, size=11)
    before, order = releases.copy(), rng.permutation(11)
    G = aggregate(releases, sizes, how)
    np.testing.assert_array_equal(releases, before)
    np.testing.assert_allclose(aggregate(releases[order], sizes[order], how), G)


def test_trimmed_is_scipys_and_without_liars_the_mean(rng):
    releases = rng.normal(size=(10, 3, 4))
    np.testing.assert_allclose(trimmed(releases, 2), stats.trim_mean(releases, 0.2, axis=0))
    np.testing.assert_allclose(trimmed(releases, 0), releases.mean(axis=0))


def test_krum_is_its_definition(rng):
    releases, f = rng.normal(size=(9, 6)), 2
    releases[3] += 5
    scores = []
    for i in range(9):
        squares = sorted(sum((releases[i] - releases[j]) ** 2) for j in range(9) if j != i)
        scores.append(sum(squares[: 9 - f - 2]))
    kept = sorted(sorted(range(9), key=lambda i: scores[i])[: 9 - f])
    assert 3 not in kept
    np.testing.assert_allclose(krum(releases, f), releases[kept].mean(axis=0))


@settings(max_examples=60, deadline=None)
@given(
    how=st.sampled_from(ROBUST),
    n=st.integers(10, 25),
    size=st.floats(1, 1e14),
    seed=st.integers(0, 10**6),
)
def test_a_tenth_of_liars_moves_no_robust_aggregate_out_of_the_honest_releases(how, n, size, seed):
    """Whatever they send, the result stays within reach of the honest ones."""
    rng = np.random.default_rng(seed)
    releases, f = rng.normal(size=(n, 5)), liars(n, 0.1)
    kinds = [rng.normal(size=(f, 5)), -releases[:f], np.ones((f, 5)), releases[f : 2 * f]]
    releases[:f] = size * kinds[seed % 4]
    honest = releases[f:]
    G = aggregate(releases, np.ones(n), how, 0.1)
    if how == "krum":  # a liar may stay, but no farther out than the honest are from each other
        assert np.linalg.norm(G - honest.mean(axis=0)) <= 4 * np.linalg.norm(np.ptp(honest, axis=0))
    else:
        assert (honest.min(axis=0) - 1e-9 <= G).all()
        assert (honest.max(axis=0) + 1e-9 >= G).all()
    # The mean, which is not robust, is moved without limit.
    if size > 1e6 and seed % 4 == 2:
        assert np.abs(releases.mean(axis=0)).min() > 1e3


def test_one_liar_more_than_half_owns_the_median():
    honest, lies = np.zeros((5, 2)), np.full((5, 2), 1e9)
    assert np.abs(median(np.concatenate([honest, lies[:4]]))).max() == 0
    assert np.abs(median(np.concatenate([honest[:4], lies]))).max() == 1e9


def test_too_few_releases_are_told():
    with pytest.raises(ConfigError, match="2 releases are too few to leave out"):
        trimmed(np.zeros((2, 3)), 1)
    with pytest.raises(ConfigError, match="4 releases are too few against 1"):
        krum(np.zeros((4, 3)), 1)
    assert bears("median", 0.4, 1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["aggregation=krum", "partition.clients=4"], "releases are too few"),
        (["aggregation=trimmed", "malicious_fraction=0.5"], "must be >= 0 and < 0.5"),
        (["aggregation=median", "privacy.trust=aggregate"], "needs aggregation=size"),
        (["aggregation=mode"], "aggregation"),
        (["engine=flower", "engine.min_clients=4", "aggregation=krum"], "releases are too few"),
    ],
)
def test_what_can_not_bear_liars_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        parse(compose(overrides))


@pytest.mark.parametrize("how", ["uniform", "size", "median", "trimmed", "krum"])
def test_groups_do_not_show_in_a_bit(rng, how):
    releases = rng.normal(size=(53, 4, 7)).astype(np.float32)
    sizes = rng.integers(1, 100, 53)
    whole = aggregate(releases, sizes, how)
    for cuts in ([1, 2, 50], [20], range(1, 53)):
        combined = Combined(how)
        for part, of in zip(np.split(releases, cuts), np.split(sizes, cuts), strict=True):
            combined.add(part, of)
        np.testing.assert_array_equal(combined.result(), whole)
    if how == "uniform":
        np.testing.assert_array_equal(whole, releases.mean(axis=0))


def test_a_mean_keeps_no_release(rng):
    combined, refs = Combined("uniform"), []
    for _ in range(100):
        release = rng.normal(size=(1, 3)).astype(np.float32)
        refs.append(weakref.ref(release))
        combined.add(release, np.ones(1))
        del release
    assert not any(ref() is not None for ref in refs)
