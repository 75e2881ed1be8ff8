"""What a tree's sums cost, where server and dropouts decide whose changes are in which of them."""

import numpy as np
import pytest

from fedsofim.clients.tree import Tree


def changes(rounds: int) -> np.ndarray:
    """How a client's draws make up the noise of its rounds."""
    tree, L, open_nodes = Tree(rounds=rounds), np.zeros((rounds, rounds)), {}
    for t in range(rounds):
        level = tree._closed(t)
        L[t, t] = 1
        for below in [k for k in open_nodes if k < level]:
            L[t, open_nodes.pop(below)] = -1
        open_nodes[level] = t
    return L


def cost(noise: np.ndarray) -> float:
    """What sums with noise of this covariance are worth to a record in all of them."""
    return float(np.linalg.solve(noise, np.ones(len(noise))).sum())


@pytest.mark.parametrize("rounds", [7, 15, 31])
def test_clients_that_are_a_leaf_ahead_hide_less_than_was_charged(rounds: int) -> None:
    """Why owners refuse to add to a sum of another leaf than their own next one."""
    L, charged = changes(rounds + 1), Tree(rounds=rounds + 1).disclosure.releases(rounds)
    C = L @ L.T
    assert cost(C[:rounds, :rounds]) == pytest.approx(charged)
    mine, others = C[:rounds, :rounds], C[1:, 1:]
    assert cost((mine + 19 * others) / 20) > 1.1 * charged


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_vanish_now_and_then_hide_as_much_as_was_charged(seed: int) -> None:
    """Beside its diagonal C is not positive: nearer to 0 there, its inverse is smaller."""
    T, h, rng = 16, 3, np.random.default_rng(seed)
    C, charged = changes(T) @ changes(T).T, Tree(rounds=T).disclosure.releases(T)
    assert (C - np.diag(np.diagonal(C)) <= 0).all()
    there = np.array([rng.permutation(8) < h + rng.integers(3) for _ in range(T)])
    common = there.astype(float) @ there.T / h
    assert cost(C * common) <= charged
