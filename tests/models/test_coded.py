"""Features that stay as a file holds them: the same numbers, made when they are asked for."""

import numpy as np
import pytest

from fedsofim.models import coded, head, head_sums
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


def test_no_records_have_sums_of_zero(pair):
    _, lazy = pair
    none = head.examples(lazy.x.rows[np.arange(0)], np.arange(0), K)
    factors = Factors(*(np.eye(n, dtype=np.float32) for n in (K, F + 1)))
    P = np.triu(np.ones((F + 1, F + 1), np.float32))
    for data in (none, none.with_transform(factors), none.through(P, exact=False)):
        assert data.lazy
        assert data.norm.shape == (0,)
        assert not data.gradient_sum(theta_of(), 0.7).value.any()


def test_scores_and_sums_of_features_are_the_same(pair):
    made, lazy = pair
    assert made.evaluate(theta_of()) == lazy.evaluate(theta_of())
    np.testing.assert_array_equal(made.predict(theta_of()), lazy.predict(theta_of()))
    np.testing.assert_array_equal(
        made.features.second_moment(1.0).value, lazy.features.second_moment(1.0).value
    )


@pytest.fixture
def kernel():
    return pytest.importorskip("fedsofim_kernel")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("features", [1, 3, 4, 8, 16, 23, 64])
@pytest.mark.parametrize("n", [1, 15, 16, 333])
def test_the_kernel_makes_the_floats_that_numpy_makes(kernel, rng, kind, features, n):
    size = np.dtype(kind).itemsize
    memory = rng.integers(0, 256, 500 * features * size + 1, dtype=np.uint8)[1:]  # as in a file
    held = memory.view(kind).reshape(500, features)
    scale, lo = rng.standard_normal((2, features), dtype=np.float32)
    which = rng.integers(0, 500, n).astype(np.int32)
    for code in ((), (scale, lo)):
        for rows in (Rows(held[:n], *code), Rows(held, *code, **({"which": which}))):
            out = np.full((features + 2, n + 5), 7, np.float32)
            assert rows.known
            with np.errstate(all="ignore"):
                rows.write(out[1:-1, :n])
                np.testing.assert_array_equal(out[1:-1, :n], rows.made().T)  # which NumPy makes
            assert (out[[0, -1]] == 7).all() and (out[:, n:] == 7).all()  # noqa: PT018


def test_every_number_in_half_precision_is_read(kernel):
    held = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 16)
    out = np.empty(held.T.shape, np.float32)
    Rows(held).write(out)
    np.testing.assert_array_equal(out, held.T.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(out), np.signbit(held.T))


def test_without_the_kernels_floats_sums_have_the_same_bits(kernel, pair, monkeypatch):
    sums = pair[1].gradient_sum(theta_of(), 0.7).value, pair[1].gradient_sum(theta_of(3), 0.7).value
    monkeypatch.setattr(head_sums, "decoded_sum", None)
    np.testing.assert_array_equal(sums[1], pair[1].gradient_sum(theta_of(3), 0.7).value)
    monkeypatch.setattr(coded, "decode_rows", None)
    np.testing.assert_array_equal(sums[0], pair[1].gradient_sum(theta_of(), 0.7).value)


def test_many_classes_and_every_third_record(kernel, rng):
    held, y = rng.integers(0, 256, (9_000, 5), dtype=np.uint8), rng.integers(0, 300, 9_000)
    theta = rng.standard_normal((300, 6), dtype=np.float32)
    some = slice(1, None, 3)
    made = head.examples(held.astype(np.float32), y, 300)
    lazy = head.examples(Rows(held)[np.arange(9_000)], y, 300)
    for a, b in ((made, lazy), (made.part(some), head.examples(lazy.x.rows[some], y[some], 300))):
        assert b.lazy
        np.testing.assert_array_equal(*(D.gradient_sum(theta, 0.7).value for D in (a, b)))


@pytest.mark.parametrize("wrong", [-1, 9])
def test_the_kernel_refuses_records_that_are_not_there(kernel, wrong):
    rows, out = np.zeros((9, 4), np.uint8), np.empty((4, 2), np.float32)
    which, scale = np.array([0, wrong], np.int32), np.ones(4, np.float32)
    with pytest.raises(ValueError, match="0 to M - 1"):
        kernel.decode_rows(out, rows, which, None, None)
    with pytest.raises(ValueError, match="expected"):
        kernel.decode_rows(out, rows[:, :3].copy(), which, None, None)
    for wrong_axes in (rows.reshape(-1), rows[0, 0], rows[None]):
        with pytest.raises(ValueError, match="expected"):
            kernel.decode_rows(out, wrong_axes, which, None, None)
    with pytest.raises(ValueError, match="expected"):
        kernel.decode_rows(out, rows[:2], None, scale[:3], scale)
    with pytest.raises(ValueError, match="expected"):
        kernel.decode_rows(out, rows, which.astype(np.int64), None, None)
    total, ones = np.zeros((1, 3, 5), np.float32), np.ones(2, np.float32)
    labels, clip = np.array([0, 200], np.uint8), np.ones(1, np.float32)
    odd = np.zeros(9, np.uint8)[1:]  # numbers that begin where none of their size may
    for bad in (which, which[:1], odd.view(np.int32)):
        with pytest.raises(ValueError, match="expected"):
            kernel.decoded_sum(
                total, total, rows, bad, None, None, labels, ones, clip, None
            )  # fmt: skip
    with pytest.raises(ValueError, match="expected"):
        kernel.decoded_sum(
            total, total, rows[:2], None, None, None, odd[:4].view(np.uint16), ones, clip, None
        )
    kernel.decoded_sum(total, total.copy(), rows[:2], None, None, None, labels, ones, clip, None)
    assert np.isfinite(total).all()  # a label beyond the classes is nowhere written
