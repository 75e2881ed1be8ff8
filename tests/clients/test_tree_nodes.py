"""A simulated tree draws its nodes again instead of storing them, and nobody can tell."""

import numpy as np
import pytest

from fedsofim.clients.group import Client
from fedsofim.clients.tree import Tree, TreeState
from fedsofim.models import head
from fedsofim.privacy.mechanism import seeded
from fedsofim.privacy.plan import Plan

ROUNDS = 21
PLAN = Plan(clip=1.5, noise_multiplier=3.0, releases=1, delta=1e-5, adjacency="replace-one")
TREES = [
    Tree(rounds=ROUNDS),
    Tree(rounds=ROUNDS, batches=4),
    Tree(rounds=ROUNDS, batches=5),
    Tree(rounds=ROUNDS, tree="identity"),
]


@pytest.fixture
def clients(rng):
    data = [
        head.examples(rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 3, n), 3)
        for n in (9, 5, 200)
    ]
    return [Client(i, D) for i, D in enumerate(data)]


@pytest.fixture
def theta(rng):
    return rng.normal(size=(3, 5)).astype(np.float32)


def storing(program, theta, client, state, t):
    """One client's round as the formulas have it, its nodes stored: the change of its prefix."""
    i, D = client
    batch = D.part(slice(t % program.batches, None, program.batches))
    S = batch.gradient_sum(theta, PLAN.clip)
    fresh = seeded(0, t)(i, 0).gaussian(S, PLAN.client_noise_multiplier)
    changes, nodes = program._grown(S.value[None], fresh[None], state.nodes, int(state.t[0]))
    return changes[0] / np.float32(D.size / program.batches), TreeState(nodes, state.t + 1)


@pytest.mark.parametrize("program", TREES, ids=str)
def test_what_is_drawn_again_is_what_would_have_been_stored(program, clients, theta):
    state = program.init(theta, len(clients))
    stored = [program.init(theta, 1) for _ in clients]
    for t in range(ROUNDS):
        sent, state = program.release({"theta": theta}, clients, state, PLAN, seeded(0, t))
        for k, client in enumerate(clients):
            expected, stored[k] = storing(program, theta, client, stored[k], t)
            np.testing.assert_array_equal(sent[k], expected)
    assert not state.nodes.any()


@pytest.mark.parametrize("program", TREES, ids=str)
@pytest.mark.parametrize("done", [1, 6, 7, 13])
def test_a_state_that_stored_its_nodes_goes_on_with_the_same_bits(program, clients, theta, done):
    state, stored = (program.init(theta, len(clients)) for _ in range(2))
    for t in range(ROUNDS):
        if t == done:
            alone = [program.init(theta, 1) for _ in clients]
            for k, client in enumerate(clients):
                for s in range(done):
                    _, alone[k] = storing(program, theta, client, alone[k], s)
            nodes = np.concatenate([one.nodes for one in alone])
            nodes[1] = 0  # and one that did not
            stored = TreeState(nodes, np.full(len(clients), done))
        sent, state = program.release({"theta": theta}, clients, state, PLAN, seeded(0, t))
        if t >= done:
            other, stored = program.release({"theta": theta}, clients, stored, PLAN, seeded(0, t))
            np.testing.assert_array_equal(sent, other)


def test_the_state_of_others_is_left_as_it_was(clients, theta):
    program = Tree(rounds=8)
    nodes = np.ones((3, 4, 3, 5), np.float32)
    before = TreeState(nodes.copy(), np.full(3, 3))
    program.release({"theta": theta}, clients, before, PLAN, seeded(0, 3))
    np.testing.assert_array_equal(before.nodes, nodes)


def test_clients_that_missed_a_round_still_cancel_their_own_noise(clients, theta):
    """As behind somebody else's server, which does not ask everybody every time."""
    program, rounds = Tree(rounds=8), [0, 1, 3, 4, 6, 7, 9, 11]
    state, total = program.init(theta, 1), np.zeros_like(theta)
    for t in rounds:
        sent, state = program.release({"theta": theta}, clients[:1], state, PLAN, seeded(0, t))
        total += sent[0]
    D = clients[0].data
    S = D.gradient_sum(theta, PLAN.clip)
    root = seeded(0, rounds[-1])(0, 0).gaussian(S, PLAN.client_noise_multiplier)
    np.testing.assert_allclose(total, (8 * S.value + root) / D.size, rtol=1e-4, atol=1e-5)
