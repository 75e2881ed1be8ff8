"""The ring keeps what its page claims: whom colluders must surround, and how likely that is."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from fedsofim.core.errors import ConfigError
from fedsofim.secagg import graph
from fedsofim.secagg.graph import Graph, Neighbours, default_neighbours, draw, log2_failure
from fedsofim.secagg.session import check


@pytest.mark.parametrize(("n", "w"), [(9, 2), (10, 4), (40, 7)])
def test_neighbours_are_mutual_and_on_both_sides(n, w):
    ring = draw(b"root", range(n), w)
    for u in range(n):
        after, before = ring.windows(u)
        assert len({*after, *before, u}) == 2 * w + 1
        assert all(u in ring.windows(v)[1] for v in after)
        assert all(u in ring.neighbours(v) for v in ring.neighbours(u))


def test_the_order_depends_on_all_keys_and_on_nothing_else():
    assert draw(b"a", range(50), 3) == draw(b"a", list(reversed(range(50))), 3)
    orders = {draw(bytes([i]), range(50), 3).order for i in range(50)}
    assert len(orders) == 50
    first = [draw(i.to_bytes(4, "little"), range(8), 2).order[0] for i in range(4000)]
    assert stats.chisquare(np.bincount(first, minlength=8)).pvalue > 1e-4


def parts(ring, among):
    """The connected parts of some clients."""
    left, found = set(among), []
    while left:
        part, front = set(), {left.pop()}
        while front:
            part |= front
            front = {v for u in front for v in ring.neighbours(u)} & left
            left -= front
        found.append(part)
    return found


def learned(ring, colluders, survivors, quorum):
    """The sets of honest clients whose sums a server can learn, by the rules of the protocol."""
    honest = survivors - colluders
    bare = {
        u
        for u in honest
        if all(len(survivors.intersection(window)) >= quorum for window in ring.windows(u))
    }
    return [part for part in parts(ring, honest) if part <= bare]


def surrounded(ring, colluders, quorum):
    """Whether two disjoint windows hold so many colluders."""
    n, w = len(ring.order), ring.window
    full = [
        i for i in range(n) if sum(ring.order[(i + k) % n] in colluders for k in range(w)) >= quorum
    ]
    return any(w <= (j - i) % n <= n - w for i in full for j in full)


@pytest.mark.parametrize(("n", "w", "quorum"), [(8, 2, 1), (8, 2, 2), (8, 3, 2), (9, 3, 3)])
def test_only_surrounded_clients_can_be_told_apart(n, w, quorum):
    """Every set of colluders and of survivors: a sum over a part needs two windows of colluders."""
    ring, split = Graph(tuple(range(n)), w), 0
    for c in range(n - 1):
        for chosen in combinations(range(n), c):
            colluders = set(chosen)
            safe = not surrounded(ring, colluders, quorum)
            others = sorted(set(range(n)) - colluders)
            for some in range(2 ** len(others)):
                honest = {u for k, u in enumerate(others) if some >> k & 1}
                sets = learned(ring, colluders, colluders | honest, quorum)
                whole = not sets or sets == [honest]
                split += not whole
                assert whole or not safe
    assert split or quorum > 2  # the test sees such sets where there are some


def test_the_chance_is_that_of_random_orders():
    """Where it is large enough to be counted; the bound is above, and not by much."""
    n, c, w, quorum, rng = 60, 24, 5, 4, np.random.default_rng(0)
    colluders, hits, trials = set(range(c)), 0, 400
    for _ in range(trials):
        ring = Graph(tuple(int(i) for i in rng.permutation(n)), w)
        hits += surrounded(ring, colluders, quorum)
    p = stats.hypergeom(n - 1, c, w).sf(quorum - 1)
    assert 2 ** log2_failure(n, c, w, quorum) == pytest.approx((n * p) ** 2)
    assert hits / trials <= min(1, (n * p) ** 2)


@pytest.mark.parametrize(
    ("n", "t", "c"), [(33, 27, 3), (100, 80, 0), (100, 80, 10), (300, 240, 30), (1000, 800, 100)]
)
def test_default_neighbours_are_safe_and_few(n, t, c):
    w, quorum = default_neighbours(n, t, c)
    assert w
    assert 2 * quorum >= w
    assert log2_failure(n, c, w, quorum) <= graph.LOG2_FAILURE
    gone = stats.hypergeom(n, n // 10, w).sf(w - quorum)
    assert n * gone <= graph.LOSS
    assert 2 * w <= 80
    assert check(n, t, c) == (w, quorum)


def test_the_chance_of_a_loss_is_that_of_random_losses():
    """Where it is large enough to be counted; the bound is above, and not by much."""
    n, gone, w, quorum, rng = 40, 6, 6, 3, np.random.default_rng(0)
    ring, hits, trials = draw(b"root", range(n), w), 0, 2000
    for _ in range(trials):
        left = set(range(n)) - set(rng.choice(n, gone, replace=False).tolist())
        windows = {window for i in range(n) for window in ring.windows(i)}
        hits += any(len(left.intersection(window)) < quorum for window in windows)
    bound = graph._loss(n, gone, w, quorum)
    assert bound / 4 < hits / trials < bound


def test_few_clients_are_all_neighbours():
    for n in range(3, graph.COMPLETE + 1):
        assert default_neighbours(n, n, n // 4).window == 0


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((10, 5, 0), "two lists"),
        ((10, 6, 2), "two lists"),
        ((10, 11, 0), "cannot be left"),
        ((10, 8, 7), "exceed secagg.colluders"),
        ((10, 9, -1), "exceed secagg.colluders"),
        ((10, 8, 1, Neighbours(5, 3)), "neighbours=10"),
        ((10, 8, 3, Neighbours(0, 3)), "neighbours=0"),
        ((100, 80, 20, Neighbours(6, 3)), "chance"),
    ],
)
def test_numbers_that_protect_nobody_are_refused(numbers, told):
    with pytest.raises(ConfigError, match=told):
        check(*numbers)
