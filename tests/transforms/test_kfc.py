"""The transform before the clip: its algebra, its privacy, and that every strategy takes it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsofim.core.linalg import inverse_root
from fedsofim.models import head
from fedsofim.models.records import Covariances, Factors
from fedsofim.transforms.kfc import KFC

CLASSES, FEATURES = 4, 6


def covariance(rng, d, rank=None):
    x = rng.standard_normal((d, rank or 3 * d)) * np.geomspace(1, 1e-2, d)[:, None]
    return x @ x.T / x.shape[1]


def factors(rng, dtype=np.float64):
    """Turned, so that they are not symmetric: a server may send any."""

    def turned(d):
        Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
        return (inverse_root(covariance(rng, d), 1e-3) @ Q).astype(dtype)

    return Factors(turned(CLASSES), turned(FEATURES + 1))


def data(rng, n, spread=1.0):
    x = spread * rng.standard_normal((n, FEATURES))
    return head.examples(x, rng.integers(0, CLASSES, n), CLASSES)


def explicit(theta, D, factors):
    """Every example's gradient, transformed, one by one, `(N, K, F+1)`."""
    r = head.residual(theta, D)
    return np.stack(
        [factors.U_G @ np.outer(a, b) @ factors.U_A for a, b in zip(r.T, D.x.T, strict=True)]
    )


# --- the factors --------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 5, 65])
@pytest.mark.parametrize("damping", [1e-9, 1e-3, 0.5])
def test_u_c_u_is_the_identity_up_to_damping(rng, d, damping):
    C = covariance(rng, d)
    U = inverse_root(C, damping)
    eigenvalues, Q = np.linalg.eigh(C)
    shrunk = eigenvalues / (eigenvalues + damping * eigenvalues[-1])
    np.testing.assert_allclose(U @ C @ U, (Q * shrunk) @ Q.T, atol=1e-9)
    np.testing.assert_allclose(U, U.T, atol=1e-9)
    if damping == 1e-9:
        np.testing.assert_allclose(U @ C @ U, np.eye(d), atol=2e-4)


def test_floor_raises_small_eigenvalues_and_zero_is_left_alone(rng):
    U = inverse_root(np.diag([1.0, 1e-8, 0.0]), damping=1e-12, floor=0.01)
    np.testing.assert_allclose(np.diag(U), [1, 10, 10], rtol=1e-6)
    np.testing.assert_array_equal(inverse_root(np.zeros((3, 3)), 1e-3), np.eye(3))


def test_normalisation_keeps_probes_or_eigenvalues_at_their_mean_square(rng):
    C = covariance(rng, 9)
    layer = [Covariances(C, C)]
    U = KFC(damping=1e-3).factors(layer).U_A.astype(np.float64)
    assert np.trace(U @ C @ U) == pytest.approx(np.trace(C), rel=1e-5)
    U = KFC(damping=1e-3, normalise="eigenvalues").factors(layer).U_A.astype(np.float64)
    assert (np.linalg.eigvalsh(U) ** 2).mean() == pytest.approx(1, rel=1e-5)
    U = KFC(damping=1e-3, normalise="none").factors(layer).U_A
    np.testing.assert_allclose(U, inverse_root(C, 1e-3), rtol=1e-5, atol=1e-5)


def test_a_network_keeps_its_mean_square_and_layers_weigh_as_without_normalisation(rng):
    layers = [Covariances(covariance(rng, 3), covariance(rng, d)) for d in (9, 4)]
    layers.append(Covariances(np.ones((1, 1)), rng.uniform(1, 2, 6)))  # a diagonal, of a norm
    free, kept = (
        KFC(damping=1e-3, absolute=True, normalise=n).factors(layers) for n in ("none", "network")
    )
    np.testing.assert_array_equal(kept.U_A, free.U_A)
    ratio = kept.U_G / free.U_G
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
    before = after = 0
    U_G = np.split(kept.U_G.astype(float), [9, 18])
    U_A = np.split(kept.U_A.astype(float), [81, 97])
    for (G, A), u_g, u_a in zip(layers, U_G, U_A, strict=True):
        A = np.diag(A) if A.ndim == 1 else A
        u_g = u_g.reshape(G.shape)
        u_a = np.diag(u_a) if len(u_a) == len(A) else u_a.reshape(A.shape)
        before += np.trace(np.kron(G, A))
        U = np.kron(u_g, u_a)
        after += np.trace(U @ np.kron(G, A) @ U)
    assert after == pytest.approx(before, rel=1e-5)


def test_the_papers_damping_is_added_as_it_is_but_never_next_to_nothing():
    layer = [Covariances(np.eye(2), np.diag([3.0, 0.007]))]
    kfc = KFC(damping=1e-3, absolute=True, normalise="none")
    np.testing.assert_allclose(np.diag(kfc.factors(layer).U_A) ** -2.0, [3.001, 0.008], rtol=1e-5)
    layer = [Covariances(np.eye(2), np.diag([1e3, 0.0]))]
    np.testing.assert_allclose(np.diag(kfc.factors(layer).U_A) ** -2.0, [1e3 + 0.1, 0.1], rtol=1e-5)


def test_the_transform_is_the_kronecker_factored_inverse_root(rng):
    """Without damping to speak of, vec(U_G g U_A) is (G x A)^(-1/2) vec(g), by a dense inverse."""
    G, A, g = covariance(rng, 3), covariance(rng, 5), rng.standard_normal((3, 5))
    U_G, U_A = (inverse_root(C, 1e-13) for C in (G, A))
    eigenvalues, Q = np.linalg.eigh(np.kron(G, A))
    dense = (Q / np.sqrt(eigenvalues)) @ Q.T @ g.ravel()
    np.testing.assert_allclose((U_G @ g @ U_A).ravel(), dense, rtol=1e-6)


def test_a_wide_factor_is_remembered_by_its_numbers_and_settings(rng, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "fedsofim.transforms.kfc.inverse_root",
        lambda *a: (asked.append(a), inverse_root(*a))[1],
    )
    C = covariance(rng, 300)
    first = KFC(damping=1e-3).factors([Covariances(np.eye(2), C)])
    again = KFC(damping=1e-3).factors([Covariances(np.eye(2), C.copy())])
    assert first.U_A is again.U_A  # so nobody need compare them
    assert sum(len(a[0]) == 300 for a in asked) == 1
    for kfc, D in ((KFC(damping=1e-2), C), (KFC(damping=1e-3), C + np.eye(300))):
        U = kfc.factors([Covariances(np.eye(2), D)]).U_A
        exact = inverse_root(D, kfc.damping)
        np.testing.assert_allclose(U / np.linalg.norm(U), exact / np.linalg.norm(exact), atol=1e-6)


def test_sides_leave_the_other_factor_alone(rng):
    layer = [Covariances(covariance(rng, 3), covariance(rng, 5))]
    only = KFC(damping=1e-3, sides="input").factors(layer)
    np.testing.assert_array_equal(only.U_G, np.eye(3))
    only = KFC(damping=1e-3, sides="output").factors(layer)
    np.testing.assert_array_equal(only.U_A, np.eye(5))


def test_curvature_is_the_mean_of_outer_products(rng):
    D, theta = data(rng, 50), rng.standard_normal((CLASSES, FEATURES + 1))
    ((G, A),) = D.curvature(theta)
    r = head.residual(theta, D)
    np.testing.assert_allclose(G, np.mean([np.outer(v, v) for v in r.T], axis=0), atol=1e-12)
    np.testing.assert_allclose(A, np.mean([np.outer(v, v) for v in D.x.T], axis=0), atol=1e-12)


# --- the clipped sum ----------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.3, 2.0, math.inf])
def test_the_sum_is_that_of_explicitly_transformed_and_clipped_gradients(rng, clip):
    D, theta, f = data(rng, 2500), rng.standard_normal((CLASSES, FEATURES + 1)), factors(rng)
    g = explicit(theta, D, f)
    norm = np.linalg.norm(g, axis=(1, 2), keepdims=True)
    expected = (g * np.minimum(1, clip / norm)).sum(axis=0)
    np.testing.assert_allclose(
        D.with_transform(f).gradient_sum(theta, clip).value, expected, rtol=1e-9
    )


def test_the_identity_changes_nothing_and_a_new_transform_replaces_the_old(rng):
    D, theta, f = data(rng, 300), rng.standard_normal((CLASSES, FEATURES + 1)), factors(rng)
    one = Factors(np.eye(CLASSES), np.eye(FEATURES + 1))
    plain = head.clipped_gradient_sum(theta, D, 0.5)
    np.testing.assert_allclose(
        D.with_transform(one).gradient_sum(theta, 0.5).value, plain, rtol=1e-12
    )
    again = D.with_transform(f).with_transform(one)
    np.testing.assert_allclose(again.gradient_sum(theta, 0.5).value, plain, rtol=1e-12)
    other = f._replace(U_G=one.U_G)  # the features' factor stays, and with it what it cost
    before = D.with_transform(f)
    kept = before.with_transform(other)
    assert kept.transformed.norm is before.transformed.norm
    np.testing.assert_array_equal(
        kept.gradient_sum(theta, 0.5).value, D.with_transform(other).gradient_sum(theta, 0.5).value
    )


def test_a_stack_of_heads_goes_through_as_each_alone(rng):
    D, thetas, f = data(rng, 700), rng.standard_normal((3, CLASSES, FEATURES + 1)), factors(rng)
    together = D.with_transform(f).gradient_sum(thetas, 0.5).value
    for theta, S in zip(thetas, together, strict=True):
        np.testing.assert_allclose(
            D.with_transform(f).gradient_sum(theta, 0.5).value, S, rtol=1e-10
        )


@given(seed=st.integers(0, 10**6), clip=st.sampled_from([0.01, 1.0, 30.0]))
def test_replacing_a_record_moves_the_sum_by_at_most_2c(seed, clip):
    rng = np.random.default_rng(seed)
    theta, f = 3 * rng.standard_normal((CLASSES, FEATURES + 1)), factors(rng)
    spread = float(rng.choice([1e-3, 1, 1e3]))
    D, other = data(rng, 20, spread), data(rng, 1, spread * 10)
    parts = (D.x, D.target, D.norm)
    swapped = [np.concatenate([p[..., 1:], q], axis=-1) for p, q in zip(parts, other, strict=False)]
    neighbour = head.Examples(*swapped)
    a, b = (d.with_transform(f).gradient_sum(theta, clip).value for d in (D, neighbour))
    assert np.linalg.norm(a - b) <= 2 * clip * (1 + 1e-9)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.inf, np.nan, "large"])
def test_a_record_that_is_not_finite_contributes_nothing(rng, way, dtype, bad):
    theta, f = rng.standard_normal((CLASSES, FEATURES + 1)).astype(dtype), factors(rng, dtype)
    x = rng.standard_normal((40, FEATURES)).astype(dtype)
    y = rng.integers(0, CLASSES, 40)
    x[7] = np.finfo(dtype).max if bad == "large" else bad
    rest = np.arange(40) != 7
    S = head.examples(x, y, CLASSES).with_transform(f).gradient_sum(theta, 0.5).value
    clean = (
        head.examples(x[rest], y[rest], CLASSES).with_transform(f).gradient_sum(theta, 0.5).value
    )
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(S, clean, rtol=1e4 * eps, atol=1e3 * eps)


def single(x, y, classes, U_G, U_A):
    factors = Factors(np.asarray(U_G, np.float32), np.asarray(U_A, np.float32))
    return head.examples(np.asarray(x, np.float32), np.asarray(y), classes).with_transform(factors)


def size(D, clip, theta=None):
    """The norm of the clipped sum, in float64."""
    theta = np.zeros((len(D.target), len(D.x)), np.float32) if theta is None else theta
    return np.linalg.norm(D.gradient_sum(theta, clip).value.astype(float))


@pytest.mark.parametrize("stack", [(), (5,)])
@pytest.mark.parametrize("clip", [0.3, 2.0, math.inf])
def test_single_precision_is_double_precision_to_its_digits(rng, way, stack, clip):
    D, f = data(rng, 700), factors(rng)
    theta = rng.standard_normal((*stack, CLASSES, FEATURES + 1))
    exact = D.with_transform(f).gradient_sum(theta, clip).value
    D32 = head.Examples(*(a.astype(np.float32) for a in D[:3]))
    f32 = Factors(*(U.astype(np.float32) for U in f))
    total = D32.with_transform(f32).gradient_sum(theta.astype(np.float32), clip).value
    np.testing.assert_allclose(total, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


def test_a_transform_that_turns_does_not_hide_a_record(way):
    turn = [[0, 1, 0], [1000, 0, 0], [0, 0, 1]]
    assert size(single([[0, 1000]], [0], 2, np.eye(2), turn), 1.0) <= 1 + 1e-5


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_norms_that_overflow_count_as_too_large(way):
    U_A = [[4, -2, 0], [-2, 4, 0], [0, 0, 2]]
    D = single([[3e38, 3e38]], [0], 2, np.eye(2), U_A)
    assert size(D, 1.0) == 0
    U_G = np.eye(3)
    U_G[0] = 3e38
    assert size(single([[5, 5]], [2], 3, U_G, np.eye(3)), 1e-3) <= 1e-3 * (1 + 1e-5)


def test_a_record_that_counts_for_nothing_takes_no_other_with_it(way):
    x = np.full((100, 2), 1e20)  # so large that their own norms overflow, but not the transformed
    U_A, y = 1e-20 * np.eye(3), np.zeros(100, int)
    assert size(single(x, y, 2, np.eye(2), U_A), 0.1) == pytest.approx(10, rel=1e-3)
    x[0] = np.nan
    assert size(single(x, y, 2, np.eye(2), U_A), 0.1) == pytest.approx(9.9, rel=1e-3)


def test_weights_of_few_digits_do_not_stretch_the_clip(rng, way):
    x, theta = rng.standard_normal((1, 4)), np.zeros((3, 5), np.float32)
    for sure in (0, 10, 35):
        theta[0, -1] = sure
        for scale in np.geomspace(1e12, 1e19, 50):
            for other in (scale, 3e18):
                D = single(x, [0], 3, scale * np.eye(3), other * np.eye(5))
                assert size(D, 1e-6, theta) <= 1e-6 * (1 + 1e-5)
