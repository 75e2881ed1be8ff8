"""Float noise gives the sum under it away; noise on a grid does not."""

import numpy as np
import pytest
from float_noise import FloatNoise
from hypothesis import given
from hypothesis import strategies as st

from fedsofim.privacy.reachability import reachable

GRID = 2.0**-10


def neighbours(rng, numbers):
    """Two sums of large numbers that differ by no more than two clips of norm 1."""
    S, step = rng.normal(size=(2, numbers))
    return (10 * S).astype(np.float32), (10 * S + 2 * step / np.linalg.norm(step)).astype("f4")


def float_release(rng, S, std, size):
    noise = rng.standard_normal(S.shape, dtype=np.float32) * np.float32(std)
    return (S + noise) / np.float32(size)


def grid_release(rng, S, std, size):
    """Whole numbers on a grid, in the sum as in the noise, and one division at the end."""
    whole = np.rint(S / GRID) + np.rint(rng.standard_normal(S.shape) * std / GRID)
    return (whole * GRID / size).astype(np.float32)


@given(
    seed=st.integers(0, 2**32), scale=st.floats(1e-2, 1e3), std=st.floats(1e-2, 1e3),
    size=st.integers(1, 5000),
)  # fmt: skip
def test_float_noise_always_reaches_what_it_made(seed, scale, std, size):
    rng = np.random.default_rng(seed)
    S = (rng.normal(size=(3, 7)) * scale).astype(np.float32)
    assert reachable(float_release(rng, S, std, size), S, std, size).all()


@pytest.mark.parametrize("std", [14.06, 83.65])
def test_float_noise_tells_one_sum_from_another(rng, std):
    S, other = neighbours(rng, 400)
    noise = FloatNoise().standard_normal((50, 400), np.float32) * np.float32(std)
    y = (S + noise) / np.float32(50)
    assert reachable(y, S, std, 50).all()
    assert not reachable(y, other, std, 50).all(axis=1).any()  # nobody is mistaken, ever


@pytest.mark.parametrize("std", [14.06, 83.65])
def test_grid_noise_is_at_chance(rng, std):
    S, other = neighbours(rng, 40)
    seen = []
    for truth in (S, other):
        y = grid_release(rng, np.broadcast_to(truth, (1000, 40)), std, 50)
        agree = [reachable(y, assumed, std, 50).sum(axis=1) for assumed in (S, other)]
        seen.append(agree[0].astype(float) - agree[1])
    error = np.hypot(*(x.std() for x in seen)) / np.sqrt(1000)
    assert abs(seen[0].mean() - seen[1].mean()) < 4 * error
