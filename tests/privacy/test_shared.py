"""Shared noise: the sum of the parts is the whole, to the digits that are claimed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy import stats

from fedsofim.core.errors import ConfigError
from fedsofim.privacy.exact import LEAST_STD, discrete_gaussian
from fedsofim.privacy.shared import (
    check_part,
    check_room,
    client_part,
    log_distance,
)


def gaussian(variance, reach):
    p = [mp.exp(-mpf(n * n) / (2 * variance)) for n in range(-reach, reach + 1)]
    total = sum(p)
    return [value / total for value in p]


def convolved(p, q):
    reach = len(p) // 2
    return [
        sum(
            p[m + reach] * q[n - m + reach]
            for m in range(max(-reach, n - reach), min(reach, n + reach) + 1)
        )
        for n in range(-reach, reach + 1)
    ]


@pytest.mark.parametrize(("std", "clients"), [(1.0, 2), (1.0, 4), (1.3, 3)])
def test_the_sum_of_parts_is_as_near_to_a_whole_as_is_claimed(std, clients):
    """In 40 digits. For two clients the claim is four times what is true; of more, phases mix."""
    mp.dps, reach = 40, 24
    part = gaussian(mpf(std) ** 2, reach)
    total = part
    for _ in range(clients - 1):
        total = convolved(total, part)
    whole = gaussian(clients * mpf(std) ** 2, reach)
    inside = range(reach - 6, reach + 7)  # far out, the ends of the finite sums show
    worst = max(abs(mp.log(total[n] / whole[n])) for n in inside)
    assert worst <= log_distance(std, clients)
    if clients == 2:
        assert worst >= log_distance(std, clients) / 4


def test_at_the_least_std_nothing_is_left_of_it():
    assert log_distance(LEAST_STD, 10**6) * 10**12 == 0.0


@given(st.floats(1e-6, 1e12), st.integers(1, 10**5))
def test_the_parts_of_the_honest_are_never_less_than_the_whole(std, honest):
    part = client_part(std, honest)
    assert honest * mpf(part) ** 2 >= mpf(std) ** 2 * (1 - mpf(2) ** -52)
    assert part <= std / math.sqrt(honest) * (1 + 1e-15)


def test_drawn_parts_add_up_to_the_whole():
    std, honest = 2.0**30, 7
    total = sum(discrete_gaussian(4000, client_part(std, honest)) for _ in range(honest))
    assert stats.kstest(total, "norm", (0, std)).pvalue > 1e-4
    for wrong in (std * math.sqrt(honest), std / math.sqrt(honest), std * 2 / 3, std * 3 / 2):
        assert stats.kstest(total, "norm", (0, wrong)).pvalue < 1e-12


def test_parts_that_are_too_small_are_refused():
    check_part(LEAST_STD)
    with pytest.raises(ConfigError, match=r"part of the noise"):
        check_part(LEAST_STD / 2)


def test_room_is_that_of_an_int64():
    B = 2.0**37
    check_room(1 << 25, B, 2.0**50, 100)
    with pytest.raises(ConfigError, match="64 bits"):
        check_room(1 << 26, B, 2.0**50, 100)
    with pytest.raises(ConfigError, match="64 bits"):
        check_room(1, B, 2.0**57, 100)


def test_residues_are_sums():
    """Why room is all that is needed: int64 and uint64 agree modulo 2^64."""
    x = np.random.default_rng(0).integers(-(2**61), 2**61, (3, 1000))
    total = sum(row.astype(np.uint64) for row in x)
    assert np.array_equal(total.view(np.int64), x.sum(axis=0))
