"""Fast sums over features: what is left to a sum, moving and clipping, is done in it."""

import numpy as np
import pytest

from fedsofim.models import head, maps, moments
from fedsofim.models.moments import Features
from fedsofim.transforms.stages import affine


@pytest.fixture(params=[True, False], ids=["kernel", "numpy"])
def either(request, monkeypatch):
    """With the compiled kernel, and without it."""
    if not request.param:
        monkeypatch.setattr(moments, "clipped_moment", None)
        monkeypatch.setattr(moments, "weighted_sum", None)
        monkeypatch.setattr(maps, "norms_through", None)
    elif moments.clipped_moment is None:
        pytest.skip("there is no compiled kernel")


def by_hand(x, shift, scale, bound):
    """The clipped records, one by one, in float64."""
    c = scale * (x.astype(np.float64) + np.reshape(shift, (-1, 1)))
    norm = np.linalg.norm(c, axis=0)
    c *= np.minimum(1, bound / np.maximum(norm, 1e-300))
    return np.where(np.isfinite(norm), c, 0)


@pytest.mark.parametrize("F", [1, 3, 4, 64, 65, 129])
@pytest.mark.parametrize("N", [0, 1, 127, 128, 300])
def test_second_moments_are_those_of_moved_and_clipped_records(either, rng, F, N):
    whole = rng.normal(size=(F + 1, N + 5)).astype(np.float32)
    x, shift = whole[:-1, 5:], rng.normal(size=F).astype(np.float32)  # a view: rows are apart
    bound = 1.5 * np.sqrt(F)  # some are clipped, some are not
    S = Features(x, x[:0], None, shift, 1.3).second_moment(bound)
    c = by_hand(x, shift, 1.3, bound)
    np.testing.assert_allclose(S.value, c @ c.T, rtol=1e-4, atol=1e-4 * bound)
    assert S.bound == bound**2


def test_no_record_adds_more_than_its_bound_to_a_second_moment(either, rng):
    """One record at a time, of any size; one without a norm adds nothing, and spoils nothing."""
    for size in 10.0 ** np.arange(-30, 39, 3):
        x = (rng.normal(size=(64, 1)) * size).astype(np.float32)
        S = Features(x, x[:0]).second_moment(2.0).value
        assert np.linalg.norm(S.astype(np.float64)) <= 4 * (1 + 1e-6)
    good = rng.normal(size=(64, 200)).astype(np.float32)
    bad = good.copy()
    bad[3, :4] = np.nan, np.inf, -np.inf, 3e38
    S = Features(bad, bad[:0]).second_moment(2.0).value
    rest = Features(good[:, 4:], bad[:0]).second_moment(2.0).value
    np.testing.assert_allclose(S, rest, atol=1e-3)


@pytest.mark.parametrize("W", [2, 13, 14, 65, 128, 129])
@pytest.mark.parametrize("N", [0, 1, 15, 31, 33, 300])
def test_norms_under_a_map_are_those_of_the_product_and_never_too_small(either, rng, W, N):
    P, x = rng.normal(size=(W, W)).astype(np.float32), rng.normal(size=(W, N + 5))
    x = x.astype(np.float32)[:, 5:]  # a view: rows are apart
    T = maps.triangle(P)
    assert T.dtype == np.float32
    assert not np.tril(T, -1).any()
    norm = maps.mapped_norms(T, x)
    true, lost = (
        np.linalg.norm(A @ b, axis=0) for A, b in ((P.astype(float), x), (abs(T), abs(x)))
    )
    assert (norm >= true - 1e-6 * lost).all()  # to what float32 rounds the product
    np.testing.assert_allclose(norm, true, rtol=1e-4, atol=1e-4)


def test_a_map_that_is_not_finite_leaves_no_norm(either, rng):
    P, x = np.eye(3, dtype=np.float32), np.ones((3, 4), np.float32)
    P[0, 1] = np.inf
    assert np.isnan(maps.mapped_norms(maps.triangle(P), x)).all()


def test_the_kernel_finds_a_norm_as_if_the_record_were_alone(rng):
    """To the last bit, wherever it stands; one that is not finite spoils no other."""
    if maps.norms_through is None:
        pytest.skip("there is no compiled kernel")
    P, x = (rng.normal(size=(65, n)).astype(np.float32) for n in (65, 200))
    T = maps.triangle(P)
    norm = maps.mapped_norms(T, x)
    for part in (slice(1), slice(7, 60), slice(199, 200)):
        np.testing.assert_array_equal(maps.mapped_norms(T, x[:, part]), norm[part])
    bad = x.copy()
    bad[3, [0, 50]] = np.nan, np.inf
    others = np.delete(np.arange(200), [0, 50])
    size = maps.mapped_norms(T, bad)
    np.testing.assert_array_equal(size[others], norm[others])
    assert not np.isfinite(size[[0, 50]]).any()


def test_a_kernel_refuses_what_does_not_fit(rng):
    kernel = pytest.importorskip("fedsofim_kernel").clipped_moment
    x, shift, S = (
        np.zeros((3, 8), np.float32),
        np.zeros(3, np.float32),
        np.zeros((3, 3), np.float32),
    )
    for wrong in [(x, shift[:2], 1.0, S), (x, shift, 1.0, S[:2]), (x, shift, 1.0, S[:, ::-1])]:
        with pytest.raises((ValueError, TypeError, BufferError)):
            kernel(*wrong)
    with pytest.raises(TypeError):
        kernel(x.astype(np.float64), shift, 1.0, S)
    with pytest.raises(TypeError):
        kernel(x[:, ::2], shift, 1.0, S)


def test_norms_under_a_map_refuse_what_does_not_fit():
    kernel = pytest.importorskip("fedsofim_kernel").norms_through
    x, norm, T = np.zeros((3, 8), np.float32), np.zeros(8, np.float32), np.zeros((3, 3), np.float32)
    kernel(norm, T, x)
    few = np.zeros((2, 2), np.float32)
    for wrong in [(norm[:7], T, x), (norm, few, x), (norm, T, x[:2]), (norm, T, x[:, 1:])]:
        with pytest.raises(ValueError, match="expected shapes"):
            kernel(*wrong)
    for wrong in [(norm, T.astype(float), x), (norm, T[:, ::-1], x), (norm, T, x[0])]:
        with pytest.raises((TypeError, ValueError, BufferError)):
            kernel(*wrong)


@pytest.mark.parametrize("floor", [None, 0.0])
def test_sums_over_moved_features_are_those_over_mapped_records(either, rng, floor):
    data = head.examples(3 + rng.normal(size=(400, 12)).astype(np.float32), np.zeros(400, int), 2)
    P = affine(0.7 * np.eye(12), np.full(12, 3.0))
    lazy, mapped = data.features_through(P), data.through(P, exact=False).features
    assert lazy.shift is not None  # nothing was mapped yet
    pairs = [
        (lazy.feature_sum(2.0, floor=floor), mapped.feature_sum(2.0, floor=floor)),
        (lazy.second_moment(2.0), mapped.second_moment(2.0)),
        *zip(lazy.class_moments(0.5), mapped.class_moments(0.5), strict=True),
    ]
    for one, other in pairs:
        np.testing.assert_allclose(one.value, other.value, rtol=1e-4, atol=1e-3)
        assert one.bound == other.bound
    difference = lazy.norm_counts().value - mapped.norm_counts().value
    assert np.abs(difference).sum() <= 2  # at an edge, float32 may round


def test_a_map_that_turns_records_is_applied_at_once(rng):
    data = head.examples(rng.normal(size=(50, 4)).astype(np.float32), np.zeros(50, int), 2)
    for P in (np.eye(5), np.diag([1.0, 2, 1, 1, 1]), -np.eye(5), rng.normal(size=(5, 5))):
        P = P.astype(np.float32)
        z = (P @ data.x)[:-1]
        seen = data.features_through(P)
        np.testing.assert_allclose(seen._moved(), z, atol=1e-5)
        np.testing.assert_allclose(data.through(P).x, P @ data.x, atol=1e-5)


@pytest.mark.parametrize("far", [0.0, 1.0, 300.0, 1e6])
def test_norms_about_a_far_point_are_still_right(rng, far):
    """Where the shift takes most of a record away, its square is not the difference of two."""
    x = (far + rng.normal(size=(12, 500))).astype(np.float32)
    shift = np.full(12, -far, np.float32)
    fast = Features(x, x[:0], None, shift, 0.5).norm_counts().value
    moved = Features(np.float32(0.5) * (x + shift[:, None]), x[:0]).norm_counts(exact=True)
    assert np.abs(fast - moved.value * moved.unit).sum() <= 2


def test_known_norms_are_never_too_small(rng):
    """The clip of the mean uses the norms that rounds use, without the bias."""
    for size in (0.01, 1.0, 30.0):
        data = head.examples(
            (size * rng.normal(size=(2000, 9))).astype(np.float32), np.zeros(2000, int), 2
        )
        features = data.features
        true = (features.x.astype(np.float64) ** 2).sum(axis=0)
        square = features.known_squares()
        assert (square is None) == (size == 0.01 or true.min() <= 0.5)
        if square is not None:
            assert (square >= true).all()
            np.testing.assert_allclose(square, true, rtol=1e-5)
        S = features.feature_sum(size).value
        np.testing.assert_allclose(
            S, by_hand(features.x, np.zeros(9), 1, size).sum(axis=1), atol=0.01 * size
        )


@pytest.mark.parametrize("N", [1, 63, 64, 700])
@pytest.mark.parametrize("odd", [None, -0.5, np.inf, np.nan])
def test_sums_of_what_seems_not_negative_are_those_of_raised_records(either, rng, N, odd):
    features = rng.uniform(0.5, 2, (N, 7)).astype(np.float32)
    if odd is not None:
        features[N // 2, 3] = odd
    data = head.examples(features, np.zeros(N, int), 2).features
    bound = 3.0  # some are clipped, some are not
    total = data.feature_sum(bound, floor=0.0)
    with np.errstate(invalid="ignore"):
        c = by_hand(np.maximum(features.T, 0), np.zeros(7), 1.0, bound)
    np.testing.assert_allclose(total.value, c.sum(axis=1), rtol=1e-5)
    assert total.bound == bound
