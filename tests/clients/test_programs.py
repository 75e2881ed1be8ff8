"""The contract that every client program keeps."""

import numpy as np
import pytest
from scipy.stats import kstest

from fedsofim.clients import CLIENTS, Client
from fedsofim.clients.program import noisy_gradients
from fedsofim.core.errors import ConfigError
from fedsofim.models import head
from fedsofim.privacy.mechanism import seeded
from fedsofim.strategies import STRATEGIES
from fedsofim.strategies.rule import start

ROUNDS = 4


@pytest.fixture
def clients(rng):
    def one(i, n):
        x = rng.normal(size=(n, 5)).astype(np.float32)
        return Client(i, head.examples(x, rng.integers(0, 3, n), 3))

    return [one(i, n) for i, n in enumerate((7, 1100, 64, 20))]


@pytest.fixture
def theta(rng):
    return rng.normal(size=(3, 6)).astype(np.float32)


@pytest.fixture(params=STRATEGIES)
def config(request, config_of):
    return config_of(f"strategy={request.param}", f"rounds={ROUNDS}", "partition.clients=4")


def gradients(theta, clients, plan, t, draw=0):
    """The gradients of clients that all have the same parameters."""
    return noisy_gradients(np.stack([theta] * len(clients)), clients, plan, noise_of(t), draw)


def noise_of(t):
    return seeded(0, t)


def releases(config, theta, clients, rounds=ROUNDS):
    """What these clients send in each round, with parameters that do not move."""
    program, plan = config.client, config.plan()
    received = config.strategy.broadcast(start(config.strategy, theta))
    memory, out = program.init(theta, len(clients)), []
    for t in range(rounds):
        sent, memory = program.release(received, clients, memory, plan, noise_of(t))
        out.append(sent)
    return np.stack(out)


def test_every_kind_of_client_is_tried(config_of):
    used = {type(config_of(f"strategy={name}").client) for name in STRATEGIES}
    assert used == set(CLIENTS.values())


def test_all_clients_at_once_equal_each_alone_bit_for_bit(config, theta, clients):
    together = releases(config, theta, clients)
    alone = [releases(config, theta, [client])[:, 0] for client in clients]
    np.testing.assert_array_equal(together, np.stack(alone, axis=1))


def test_the_order_of_clients_does_not_matter(config, theta, clients):
    forward, backward = releases(config, theta, clients), releases(config, theta, clients[::-1])
    np.testing.assert_array_equal(forward, backward[:, ::-1])


def test_a_release_changes_nothing_and_can_be_repeated(config, theta, clients):
    before = [theta.copy()] + [a.copy() for client in clients for a in client.data[:3]]
    first, second = releases(config, theta, clients), releases(config, theta, clients)
    np.testing.assert_array_equal(first, second)
    after = [theta] + [a for client in clients for a in client.data[:3]]
    for a, b in zip(after, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_memory_is_passed_through_and_not_changed(config, theta, clients):
    program, plan = config.client, config.plan()
    received = config.strategy.broadcast(start(config.strategy, theta))
    memory = program.init(theta, len(clients))
    before = [np.copy(a) for a in memory]
    _, after = program.release(received, clients, memory, plan, noise_of(0))
    for a, b in zip(memory, before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert type(after) is type(memory)
    kinds = [[(a.shape, a.dtype) for a in m] for m in (memory, after)]
    assert kinds[0] == kinds[1]


def test_noise_is_new_every_round_and_for_every_client(config, theta, clients):
    sent = releases(config, theta, clients)
    sent = sent.reshape(ROUNDS * len(clients), sent[0, 0].size)
    if config.plan().releases == 0:
        assert sent.size == 0  # what is not charged is not sent
        return
    assert len(np.unique(sent[:, 0])) == len(sent)


def test_more_rounds_never_cost_less(config):
    costs = [config.client.disclosure.releases(t) for t in range(ROUNDS + 1)]
    assert costs[0] == 0
    assert costs == sorted(costs)
    assert config.plan().releases == costs[-1]


def test_a_gradient_is_the_clipped_mean_plus_the_noise_it_claims(config_of, theta, clients):
    plan = config_of("partition.clients=4").plan()
    quiet = config_of("privacy.noise_multiplier=0", "partition.clients=4").plan()
    clean = gradients(theta, clients, quiet, 0)
    for i, (client, sent) in enumerate(zip(clients, clean, strict=True)):
        total = head.clipped_gradient_sum(theta, client.data, plan.clip)
        np.testing.assert_allclose(sent, total / client.data.size, rtol=1e-6)
        draws = [gradients(theta, [client], plan, t)[0] for t in range(300)]
        noise = (np.stack(draws) - clean[i]) * client.data.size / plan.noise_std
        assert kstest(noise.ravel(), "norm").pvalue > 0.01
        assert kstest(noise.ravel() * 1.5, "norm").pvalue < 1e-6
        assert kstest(noise.ravel() / 1.5, "norm").pvalue < 1e-6


def test_clients_may_have_parameters_of_their_own(config_of, rng, clients):
    plan = config_of("privacy.noise_multiplier=0", "partition.clients=4").plan()
    own = rng.normal(size=(4, 3, 6)).astype(np.float32)
    together = noisy_gradients(own, clients, plan, noise_of(0))
    for one, client, sent in zip(own, clients, together, strict=True):
        np.testing.assert_array_equal(gradients(one, [client], plan, 0)[0], sent)


def test_draws_within_a_round_differ(config_of, theta, clients):
    plan = config_of("partition.clients=4").plan()
    first, second = (gradients(theta, clients, plan, 0, draw=k) for k in (0, 1))
    assert (first != second).all()


def test_a_client_without_records_is_refused(config_of, theta):
    empty = Client(3, head.examples(np.zeros((0, 5), np.float32), np.zeros(0, int), 3))
    with pytest.raises(ConfigError, match="client 3 holds no records"):
        gradients(theta, [empty], config_of().plan(), 0)
