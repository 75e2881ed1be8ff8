"""The local engine: the rounds that it runs are those that the formulas say."""

import tracemalloc

import numpy as np
import pytest
from references import reference

from fedsofim.engines import ENGINES
from fedsofim.runs.experiment import begin, prepare

torch = reference("torch")


def train(config, engine="local"):
    experiment = prepare(config)
    seen = []
    state = ENGINES[engine](experiment, begin(experiment), lambda state, G: seen.append(G))
    return experiment, state, seen


def torch_descent(experiment, rounds, lr, weights):
    """Plain gradient descent on a weighted mean of the clients' losses."""
    theta = torch.tensor(experiment.theta, dtype=torch.float64, requires_grad=True)
    for _ in range(rounds):
        loss = 0
        for (_, data), weight in zip(experiment.clients, weights, strict=True):
            x, y = torch.from_numpy(data.x.T).double(), torch.from_numpy(data.target.argmax(0))
            loss = loss + weight * torch.nn.functional.cross_entropy(x @ theta.T, y)
        (gradient,) = torch.autograd.grad(loss, theta)
        theta = (theta - lr * gradient).detach().requires_grad_()
    return theta.detach().numpy()


@pytest.mark.parametrize("aggregation", ["uniform", "size"])
def test_without_noise_and_clip_it_is_plain_gradient_descent(config_of, small, aggregation):
    config = config_of(
        *small, "privacy=none", "strategy=fedgd", "strategy.lr=0.5", f"aggregation={aggregation}"
    )
    experiment, state, _ = train(config)
    sizes = np.array([client.data.size for client in experiment.clients])
    weights = np.full(4, 0.25) if aggregation == "uniform" else sizes / sizes.sum()
    expected = torch_descent(experiment, 6, 0.5, weights)
    np.testing.assert_allclose(state.server.theta, expected, rtol=1e-4, atol=1e-5)


def test_a_clip_that_nothing_reaches_changes_nothing(config_of, small):
    quiet = ["privacy.noise_multiplier=0", "strategy=fedgd"]
    _, clipped, _ = train(config_of(*small, *quiet, "privacy.clip=1e6"))
    _, plain, _ = train(config_of(*small, "privacy=none", "strategy=fedgd"))
    np.testing.assert_array_equal(clipped.server.theta, plain.server.theta)


def test_the_noise_on_the_aggregate_has_the_std_that_is_accounted_for(config_of, small):
    common = [*small, "strategy=fedgd", "strategy.lr=1e-12", "rounds=400", "aggregation=size"]
    clean = train(config_of(*common, "privacy.noise_multiplier=0"))[2]
    for trust, clients in (("server", 4), ("aggregate", 1)):
        config = config_of(*common, f"privacy.trust={trust}")
        noise = np.stack(train(config)[2]) - np.stack(clean)
        # By size the aggregate is a sum over all clients' releases, over all 240 records.
        expected = config.plan().noise_std * np.sqrt(clients) / 240
        assert noise.std() == pytest.approx(expected, rel=0.05)


def test_memory_of_a_round_does_not_grow_with_the_clients(config_of, tmp_path, rng):
    features = rng.normal(size=(800, 60)).astype(np.float32)
    path = tmp_path / "wide.npz"
    np.savez(
        path,
        train_x=features,
        train_y=np.arange(800) % 400,
        test_x=features[:400],
        test_y=np.arange(400),
    )
    peaks = {}
    for clients in (20, 200):
        config = config_of(
            "dataset=npz",
            f"dataset.path={path}",
            "partition=iid",
            f"partition.clients={clients}",
            "rounds=1",
            "strategy=fedgd",
            "settings=published",
        )
        experiment = prepare(config)
        state, release = begin(experiment), experiment.theta.nbytes
        tracemalloc.start()
        ENGINES["local"](experiment, state, lambda state, G: False)
        peaks[clients] = tracemalloc.get_traced_memory()[1] / release
        tracemalloc.stop()
    assert peaks[200] < 100 < 200  # releases; all would be 200
    assert peaks[200] < 2 * peaks[20] + 10
