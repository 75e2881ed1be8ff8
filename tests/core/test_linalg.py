import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsofim.core.linalg import rank_one_solve


@given(st.integers(1, 12), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
def test_it_is_the_dense_solve(d, rho, scale, seed):
    rng = np.random.default_rng(seed)
    m, v = scale * rng.normal(size=d), rng.normal(size=d)
    dense = np.linalg.solve(np.outer(m, m) + rho * np.eye(d), v)
    condition = (rho + m @ m) / rho
    error = np.abs(rank_one_solve(m, rho, v) - dense).max()
    assert error <= 1e-14 * condition * np.abs(v).max() / rho * d


@given(arrays(np.float64, (2, 3), elements=st.floats(-1e3, 1e3)), st.floats(1e-2, 1e2))
def test_on_its_own_direction_it_is_a_shorter_formula(m, rho):
    expected = m / (rho + (m**2).sum())
    np.testing.assert_allclose(rank_one_solve(m, rho, m), expected, rtol=1e-6, atol=1e-8)


def test_in_float32_a_large_direction_does_not_cancel(rng):
    m = 50 * rng.normal(size=650).astype(np.float32)
    expected = m / (0.01 + (m.astype(float) ** 2).sum())
    np.testing.assert_allclose(rank_one_solve(m, 0.01, m), expected, rtol=1e-4)


def test_shape_and_dtype_are_kept_and_inputs_left_alone(rng):
    m, v = rng.normal(size=(2, 3, 4)).astype(np.float32)
    before = m.copy(), v.copy()
    u = rank_one_solve(m, 0.5, v)
    assert (u.shape, u.dtype) == (v.shape, v.dtype)
    np.testing.assert_array_equal((m, v), before)


def test_without_curvature_it_divides_by_rho():
    np.testing.assert_array_equal(rank_one_solve(np.zeros(3), 4.0, np.ones(3)), np.full(3, 0.25))
