import itertools

import numpy as np
import pytest
from scipy.stats import kstest

from fedsofim.core import rng
from fedsofim.core.rng import Purpose, fill_noise, noise_of, stream


def draws(*key, seed=0, n=1000):
    return stream(seed, *key).standard_normal(n)


def test_the_same_key_gives_the_same_numbers():
    np.testing.assert_array_equal(draws(Purpose.NOISE, 3, 4), draws(Purpose.NOISE, 3, 4))


def test_no_two_keys_share_numbers():
    keys = [(p, *key) for p in Purpose for key in itertools.product(range(4), range(4))]
    keys += [(p, i) for p in Purpose for i in range(4)]
    keys += [(p,) for p in Purpose]
    seen = [draws(*key, seed=seed, n=4).tobytes() for seed in (0, 1, 2**70) for key in keys]
    assert len(set(seen)) == len(seen)


def test_streams_are_uncorrelated_and_normal():
    x = np.stack([draws(Purpose.NOISE, t, i, n=4000) for t in range(5) for i in range(5)])
    off_diagonal = np.corrcoef(x)[~np.eye(25, dtype=bool)]
    assert np.abs(off_diagonal).max() < 5 / np.sqrt(4000)
    assert kstest(x.ravel(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("seed", [0, 2**32, 2**64 + 1, 10**40])
def test_any_seed_will_do(seed):
    assert np.isfinite(draws(Purpose.INIT, seed=seed)).all()


def test_the_global_generator_is_neither_read_nor_moved():
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    a = draws(Purpose.INIT)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    np.random.seed(8)  # noqa: NPY002
    np.testing.assert_array_equal(a, draws(Purpose.INIT))


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**64 + 1, 10**40])
@pytest.mark.parametrize("t", [0, 3, 2**33, -1, -4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_streams_of_the_kernel_are_numpys_bit_for_bit(seed, t, dtype):
    if rng.Stream is None:
        pytest.skip("installed without a compiler")
    clients, draw = [0, 1, 70_000, 2**32 - 1], 2
    out = np.empty((len(clients), 3, 101), dtype)  # an odd number: halves of a draw are left over
    fill_noise(out, seed, t, clients, draw)
    for row, i in zip(out, clients, strict=True):
        alone = noise_of(seed, t)(i, draw).standard_normal((3, 101), dtype=dtype)
        np.testing.assert_array_equal(row, alone)


def test_a_stream_of_the_kernel_gives_all_that_a_generator_draws():
    if rng.Stream is None:
        pytest.skip("installed without a compiler")
    bits = rng.Stream(np.array([5, 0, 0, 0, 2], np.uint32).tobytes())
    bits.seek(9)
    ours, numpys = np.random.Generator(bits), stream(5, Purpose.NOISE, 9)
    for draw in (
        lambda g: g.random(5),
        lambda g: g.integers(0, 10, 7),
        lambda g: g.standard_normal(3, dtype=np.float32),
        lambda g: g.permutation(20),
        lambda g: g.bytes(11),
    ):
        np.testing.assert_array_equal(draw(ours), draw(numpys))


@pytest.mark.parametrize("key", [(-1,), (2**32,), (1, 2, 3), ("a",)])
def test_a_key_that_is_none_is_refused(key):
    if rng.Stream is None:
        pytest.skip("installed without a compiler")
    bits = rng.Stream(b"")
    with pytest.raises((OverflowError, TypeError)):
        bits.seek(*key)
    with pytest.raises(ValueError, match="words"):
        rng.Stream(b"123")


def test_without_the_kernel_the_noise_is_the_same(monkeypatch):
    ours, numpys = np.empty((3, 50), np.float32), np.empty((3, 50), np.float32)
    fill_noise(ours, 1, 2, [4, 5, 6], 0)
    monkeypatch.setattr(rng, "Stream", None)
    fill_noise(numpys, 1, 2, [4, 5, 6], 0)
    np.testing.assert_array_equal(ours, numpys)


def test_normals_of_the_kernel_are_numpys_far_into_a_stream():
    """Also in the tail beyond 3.65, which one number in 4,000 comes from."""
    out = np.empty((2, 1_000_000), np.float32)
    fill_noise(out, 5, 6, [3, 9], 1)
    alone = [noise_of(5, 6)(i, 1).standard_normal(1_000_000, dtype=np.float32) for i in (3, 9)]
    np.testing.assert_array_equal(out, alone)
    assert np.abs(out).max() > 4.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [True, False])
def test_noise_is_added_with_the_bits_of_numpys_three_operations(dtype, kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr(rng, "Stream", None)
    rows = np.random.default_rng(0).normal(size=(4, 3, 101)).astype(dtype)
    sizes, noise = np.array([1, 5, 37, 1000]), np.empty_like(rows)
    fill_noise(noise, 1, 2, [4, 5, 6, 7], 3)
    expected = (rows + noise * 1.7) / sizes.astype(dtype)[:, None, None]
    rng.add_noise(rows, 1.7, sizes, 1, 2, [4, 5, 6, 7], 3)
    np.testing.assert_array_equal(rows, expected)


def test_where_numpy_draws_otherwise_its_numbers_count(monkeypatch):
    monkeypatch.setattr(rng, "_draws_as_numpy", lambda: False)
    out = np.empty((1, 50), np.float32)
    fill_noise(out, 1, 2, [4], 0)
    np.testing.assert_array_equal(out[0], noise_of(1, 2)(4, 0).standard_normal(50, np.float32))


@pytest.mark.parametrize(
    "given",
    [
        (np.zeros((2, 3)), np.zeros(2, np.uint32), 0),
        (np.zeros((2, 3), np.float32), np.zeros(3, np.uint32), 0),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.uint64), 0),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.uint32), 0, 1.0, np.ones(3, np.float32)),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.uint32), 0, 1.0, np.ones(2)),
    ],
)
def test_the_kernel_refuses_rows_that_do_not_fit(given):
    if rng.Stream is None:
        pytest.skip("installed without a compiler")
    with pytest.raises((ValueError, TypeError)):
        rng.Stream(b"").normals(*given)
