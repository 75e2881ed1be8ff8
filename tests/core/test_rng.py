import itertools

import numpy as np
import pytest
from scipy.stats import kstest

from fedsofim.core.rng import Purpose, stream


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
