"""Every method as a whole: its reductions, its memory, and what it is charged for."""

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from references import reference

from fedsofim.clients import Client
from fedsofim.clients.gradient import Gradient
from fedsofim.clients.program import release_stage
from fedsofim.clients.scaffold import ScaffoldState, ScaffoldSteps
from fedsofim.clients.steps import LocalSteps
from fedsofim.clients.tree import Tree
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.core.rate import Rate
from fedsofim.models import head
from fedsofim.privacy.mechanism import seeded
from fedsofim.privacy.plan import Plan
from fedsofim.strategies import STRATEGIES
from fedsofim.strategies.adaptive import FedAdam, FedYogi
from fedsofim.strategies.aggregation import aggregate
from fedsofim.strategies.fedavg import FedAvg
from fedsofim.strategies.fedfc import FedFC
from fedsofim.strategies.fedgd import FedGD
from fedsofim.strategies.rule import start, step
from fedsofim.strategies.scaffold import Scaffold

torch = reference("torch")

ROUNDS, CLASSES, FEATURES = 6, 3, 4


def plan(z=0.0, clip=1.0, releases=1.0, **kwargs):
    return Plan(
        clip=clip,
        noise_multiplier=z,
        releases=releases,
        delta=1e-5,
        adjacency="replace-one",
        **kwargs,
    )


def population(sizes=(7, 11, 5), dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Client(
            i,
            head.examples(
                rng.standard_normal((n, FEATURES)).astype(dtype),
                rng.integers(0, CLASSES, n),
                CLASSES,
            ),
        )
        for i, n in enumerate(sizes)
    ]


def noise(t):
    return seeded(0, t)


def train(rule, program, clients, plan, rounds=ROUNDS):
    """A plain loop of rounds, as the papers' pseudocode has it."""
    theta = np.random.default_rng(1).standard_normal((CLASSES, FEATURES + 1))
    sizes = np.array([client.data.size for client in clients])
    server, memory = start(rule, theta), program.init(theta, len(clients))
    for t, stage in enumerate(rule.stages, -len(rule.stages)):
        released = release_stage(stage, t, clients, {}, plan, seeded(0, t))
        server = stage.fold(server, aggregate(released, sizes, "uniform"), 0.0)
    for t in range(rounds):
        releases, memory = program.release(rule.broadcast(server), clients, memory, plan, noise(t))
        server = step(rule, server, aggregate(releases, sizes, "uniform"), rounds)
    return server.theta, memory


# --- reductions ---------------------------------------------------------------------------------


def test_fedavg_with_one_step_is_fedgd():
    avg, _ = train(FedAvg(rate=Rate(0.7)), LocalSteps(lr=0.3, steps=1), population(), plan(z=2.0))
    gd, _ = train(FedGD(rate=Rate(0.7 * 0.3)), Gradient(), population(), plan(z=2.0))
    np.testing.assert_allclose(avg, gd, rtol=1e-13, atol=1e-14)


def test_scaffold_without_control_variates_is_fedavg():
    clients, x = population(), np.random.default_rng(1).standard_normal((CLASSES, FEATURES + 1))
    zero = np.zeros((len(clients), *x.shape))
    ours, _ = ScaffoldSteps(lr=0.3, steps=4).release(
        {"theta": x, "c": zero[0]}, clients, ScaffoldState(zero), plan(z=2.0), noise(0)
    )
    fedavg, _ = LocalSteps(lr=0.3, steps=4).release(
        {"theta": x}, clients, None, plan(z=2.0), noise(0)
    )
    np.testing.assert_array_equal(ours, fedavg)


def test_adafedprox_without_pull_is_fedavg_and_with_it_is_not():
    prox, client = STRATEGIES["adafedprox"], LocalSteps(lr=0.3, steps=4)
    without, _ = train(prox(rate=Rate(1.0), mu=0.0), client, population(), plan(z=2.0))
    fedavg, _ = train(FedAvg(rate=Rate(1.0)), client, population(), plan(z=2.0))
    pulled, _ = train(prox(rate=Rate(1.0), mu=0.5), client, population(), plan(z=2.0))
    np.testing.assert_array_equal(without, fedavg)
    assert np.abs(pulled - fedavg).max() > 1e-3


def test_the_pull_fades_and_stops_at_a_tenth():
    rule = STRATEGIES["adafedprox"](rate=Rate(1.0), mu=0.2)
    state = start(rule, np.zeros((2, 2)))
    pulls = [float(rule.broadcast(state._replace(t=t))["mu"]) for t in (0, 3, 99, 10_000)]
    np.testing.assert_allclose(pulls, [0.2, 0.1, 0.02, 0.02])


def test_ftrl_with_an_identity_tree_is_fedgd():
    tree = Tree(rounds=ROUNDS, tree="identity")
    ftrl, _ = train(STRATEGIES["ftrl"](lr=0.2), tree, population(), plan(z=2.0))
    gd, _ = train(FedGD(rate=Rate(0.2)), Gradient(), population(), plan(z=2.0))
    np.testing.assert_array_equal(ftrl, gd)


def test_fedfc_with_a_large_gamma_is_scaled_fedgd():
    gamma = 1e9
    rule = FedFC(rate=Rate(0.2 * gamma), gamma=gamma, bound=3.0, setup_share=0.5)
    fc, _ = train(rule, Gradient(), population(), plan(z=2.0, shares=(0.5,)))
    gd, _ = train(FedGD(rate=Rate(0.2)), Gradient(), population(), plan(z=2.0))
    np.testing.assert_allclose(fc, gd, rtol=1e-6)


def test_fedfc_preconditions_with_the_inverse_covariance():
    clients = population()
    rule = FedFC(rate=Rate(1.0), gamma=0.5, bound=1e6, setup_share=0.5)
    theta, _ = train(rule, Gradient(), clients, plan(clip=math.inf), rounds=1)
    first, _ = train(FedGD(rate=Rate(1.0)), Gradient(), clients, plan(clip=math.inf), rounds=1)
    x0 = np.random.default_rng(1).standard_normal((CLASSES, FEATURES + 1))
    C = np.mean([c.data.x @ c.data.x.T / c.data.size for c in clients], axis=0)
    expected = x0 - (x0 - first) @ np.linalg.inv(C + 0.5 * np.eye(FEATURES + 1))
    np.testing.assert_allclose(theta, expected, rtol=1e-10)


def test_adam_is_torchs():
    rule = FedAdam(rate=Rate(0.1), beta1=0.8, beta2=0.99, tau=1e-3)
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((2, 3))
    reference = torch.nn.Parameter(torch.tensor(theta))
    optimiser = torch.optim.Adam([reference], lr=0.1, betas=(0.8, 0.99), eps=1e-3)
    state = start(rule, theta)
    for _ in range(20):
        G = rng.standard_normal((2, 3))
        state = step(rule, state, G, 20)
        reference.grad = torch.tensor(G)
        optimiser.step()
    np.testing.assert_allclose(state.theta, reference.detach().numpy(), rtol=1e-10)


def test_yogi_is_its_definition():
    rule = FedYogi(rate=Rate(0.1), beta1=0.9, beta2=0.8, tau=0.01)
    rng = np.random.default_rng(0)
    state = start(rule, rng.standard_normal(5))
    theta, m, v = state.theta.copy(), np.zeros(5), np.full(5, 0.01**2)
    for t in range(20):
        G = rng.standard_normal(5)
        state = step(rule, state, G, 20)
        for j in range(5):
            m[j] = 0.9 * m[j] + 0.1 * G[j]
            grow = G[j] ** 2 > v[j]
            v[j] += (0.2 if grow else -0.2) * G[j] ** 2
            denominator = math.sqrt(v[j] / (1 - 0.8 ** (t + 1))) + 0.01
            theta[j] -= 0.1 * m[j] / (1 - 0.9 ** (t + 1)) / denominator
    np.testing.assert_allclose(state.theta, theta, rtol=1e-10)


# --- SCAFFOLD's memory --------------------------------------------------------------------------


def test_scaffolds_control_variates_persist_as_by_hand():
    lr, K, eta_s, clients = 0.3, 2, 0.5, population()
    rule = Scaffold(rate=Rate(eta_s), client_lr=lr, local_steps=K)
    no_clip = plan(clip=math.inf)
    theta, memory = train(rule, ScaffoldSteps(lr=lr, steps=K), clients, no_clip, rounds=3)

    x = np.random.default_rng(1).standard_normal((CLASSES, FEATURES + 1))
    c, c_i = np.zeros_like(x), [np.zeros_like(x) for _ in clients]
    for _ in range(3):
        ys, deltas = [], []
        for i, (_, D) in enumerate(clients):
            y = x.copy()
            for _ in range(K):
                g = head.clipped_gradient_sum(y, D, math.inf) / D.size
                y = y - lr * (g + c - c_i[i])
            new = c_i[i] - c + (x - y) / (K * lr)
            deltas.append(new - c_i[i])
            c_i[i] = new
            ys.append(y)
        x = x + eta_s * (np.mean(ys, axis=0) - x)
        c = c + np.mean(deltas, axis=0)
    np.testing.assert_allclose(theta, x, rtol=1e-10)
    np.testing.assert_allclose(memory.c, c_i, rtol=1e-9, atol=1e-12)
    assert np.abs(memory.c).min() > 0


# --- the tree -----------------------------------------------------------------------------------


class OneHot:
    """A noise source whose draw number j is the j-th unit vector."""

    def __init__(self):
        self.draws = 0

    exact = False

    def gaussian(self, total, noise_multiplier):
        out = np.zeros_like(total.value)
        out.flat[self.draws] = 1
        self.draws += 1
        return out


def noise_matrix(program, rounds, size=1):
    """How each round's noise, on the sum, is made of the draws: `(rounds, draws)`."""
    features = rounds
    data = head.examples(np.zeros((size, features)), np.zeros(size, int), 1)  # gradients are 0
    clients, source = [Client(0, data)], OneHot()
    theta = np.zeros((1, features + 1))
    memory, rows = program.init(theta, 1), []
    for _ in range(rounds):
        out, memory = program.release(
            {"theta": theta}, clients, memory, plan(z=1.0), lambda *_: source
        )
        rows.append(out[0, 0, :rounds] * size / program.batches)
    return np.array(rows)


@pytest.mark.parametrize("rounds", [*range(1, 35), 63, 64, 65, 70])
def test_a_tree_costs_what_the_dense_matrix_says(rounds):
    """With releases S + N xi, the cost is the largest |N^-1 dS|^2, where each |dS_t| is one."""
    sums = np.linalg.inv(noise_matrix(Tree(rounds=rounds), rounds))
    assert sums.min() >= 0  # sums over leaves: the worst is a record that always pulls one way
    moved = np.cumsum(sums.sum(axis=1) ** 2)  # after each round: later ones are no part of earlier
    assert [Tree(rounds=rounds).disclosure.releases(t + 1) for t in range(rounds)] == moved.tolist()
    assert Tree(rounds=rounds, tree="identity").disclosure.releases(rounds) == rounds


def test_a_full_tree_of_70_rounds_costs_6139():
    assert Tree(rounds=70).disclosure.releases(70) == 6139


@pytest.mark.parametrize("batches", range(2, 18))
def test_a_batched_tree_costs_what_its_worst_record_does(batches):
    rounds = 2 * batches
    program = Tree(rounds=rounds, batches=batches)
    sums = np.linalg.inv(noise_matrix(program, rounds, size=batches))
    turns = np.arange(rounds)[:, None] % batches == np.arange(batches)  # who is in which round
    assert program.disclosure.releases(rounds) == ((sums @ turns) ** 2).sum(axis=0).max()


@pytest.mark.parametrize("rounds", [1, 2, 7, 8, 70])
def test_prefix_noise_is_the_explicit_trees(rounds):
    prefix = np.cumsum(noise_matrix(Tree(rounds=rounds), rounds), axis=0)
    # The nodes that tile [0, m): one for each bit of m; node (level, index) is drawn when its last
    # leaf arrives.
    explicit = np.zeros((rounds, rounds))
    for m in range(1, rounds + 1):
        begin_ = 0
        for level in reversed(range(m.bit_length())):
            if m >> level & 1:
                begin_ += 2**level
                explicit[m - 1, begin_ - 1] = 1
    np.testing.assert_array_equal(prefix, explicit)
    np.testing.assert_array_equal(
        (prefix**2).sum(axis=1), [m.bit_count() for m in range(1, rounds + 1)]
    )


def test_a_batched_tree_restarts_and_is_completed():
    batches, rounds = 5, 15
    program = Tree(rounds=rounds, batches=batches)
    prefix = np.cumsum(noise_matrix(program, rounds, size=10), axis=0)
    variance = (prefix**2).sum(axis=1)
    np.testing.assert_array_equal(variance[4::5], [1, 2, 3])  # one draw for a completed epoch
    np.testing.assert_array_equal(variance[:4], [1, 1, 2, 1])
    assert program.disclosure.releases(rounds) == 3 * (
        3 + 1
    )  # three epochs, a leaf is under 4 nodes
    assert program.disclosure.releases(1) == 4


def test_in_batched_mode_each_record_takes_part_once_an_epoch():
    clients = population(sizes=(23,))
    program, theta = Tree(rounds=5, batches=5), np.zeros((CLASSES, FEATURES + 1))
    memory, total = program.init(theta, 1), 0
    for t in range(5):
        out, memory = program.release({"theta": theta}, clients, memory, plan(), noise(t))
        total = total + out[0] * 23 / 5
    np.testing.assert_allclose(total, head.clipped_gradient_sum(theta, clients[0].data, 1.0))


# --- what is charged ----------------------------------------------------------------------------

PROGRAMS = {
    "fedgd": Gradient(),
    "fedavg": LocalSteps(lr=0.1, steps=5),
    "scaffold": ScaffoldSteps(lr=0.1, steps=5),
    "ftrl": Tree(rounds=7),
    "ftrl batched": Tree(rounds=8, batches=4),
}


def test_every_local_step_is_charged():
    assert LocalSteps(lr=0.1, steps=5).disclosure.releases(70) == 350
    assert ScaffoldSteps(lr=0.1, steps=7).disclosure.releases(70) == 490


@pytest.mark.parametrize("name", PROGRAMS)
def test_released_noise_is_what_the_accountant_was_told(name):
    """With much noise the clipped sum is negligible, so a release's spread is the noise's."""
    program, z, C, size, n = PROGRAMS[name], 1e5, 2.0, 8, 400
    one = population(sizes=(size,))[0]
    clients = [Client(i, one.data) for i in range(n)]
    stated = program.disclosure
    told = plan(z=z, clip=C, releases=stated.releases(4))
    theta = np.zeros((CLASSES, FEATURES + 1))
    received = {"theta": theta, "c": theta}
    memory, released = program.init(theta, n), []
    for t in range(4):
        out, memory = program.release(received, clients, memory, told, noise(t))
        released.append(out * size / (C * z))
    unit = {"ftrl batched": 1 / 4}.get(name, 1.0)
    if isinstance(program, LocalSteps):
        released = [out / (program.lr * math.sqrt(program.steps)) for out in released[:1]]
    if isinstance(program, Tree):  # the running sum after 3 rounds carries two nodes' noise
        released = [sum(released[:3]) / math.sqrt(2) * unit]
    for out in released:
        assert np.std(out) == pytest.approx(1, rel=0.03)  # 6000 draws: the error is 1 %


@pytest.mark.parametrize("epsilon", [0.5, 10])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dp_accounting_agrees_that_the_budget_is_kept(strategy, epsilon):
    config = parse(compose([f"strategy={strategy}", f"privacy.epsilon={epsilon}"]))
    mu = math.sqrt(sum(event.mu**2 for event in config.plan().events()))
    if strategy == "alone":  # nothing is sent
        assert config.plan().releases == mu == config.epsilon() == 0
        return
    spent = get_epsilon_gaussian(1 / mu, 1e-5)
    assert epsilon * (1 - 1e-6) < spent <= epsilon
    spends = [config.epsilon(t) for t in (1, 35, 70)]
    assert spends == sorted(spends)
    assert spends[-1] <= epsilon


@pytest.mark.parametrize("strategy", ["scaffold", "adafedprox"])
def test_clients_that_act_on_their_own_releases_may_not_share_noise(strategy):
    with pytest.raises(ConfigError, match="trust=server"):
        parse(compose([f"strategy={strategy}", "aggregation=size", "privacy.trust=aggregate"]))


def test_records_that_take_turns_can_be_replaced_but_not_added():
    parse(compose(["strategy=ftrl", "client.batches=5"]))
    parse(compose(["strategy=ftrl", "privacy.adjacency=add-remove"]))
    with pytest.raises(ConfigError, match="use replace-one"):
        parse(compose(["strategy=ftrl", "client.batches=5", "privacy.adjacency=add-remove"]))


def test_a_client_that_the_strategy_cannot_serve_is_refused():
    for overrides in (["client=scaffold"], ["strategy=fedgd", "client=alone"]):
        with pytest.raises(ConfigError, match="does not go with"):
            parse(compose(overrides))
