"""Personal networks: the same client programs, checked against torch written by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.engines.local import run
from fedsofim.models.modules import mlp
from fedsofim.privacy.mechanism import seeded
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir
from fedsofim.runs.evaluation import measure, personal_models
from fedsofim.runs.experiment import begin, prepare

CLASSES, WIDTH = 3, 4
PERSONAL = ("pfedsop", "fedavg_finetune", "alone", "ditto")


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    """Images of three classes: where the bright bar is, in noise."""
    rng = np.random.default_rng(0)
    file, arrays = tmp_path_factory.mktemp("images") / "stripes.npz", {}
    for split, n in (("train", 240), ("test", 150)):
        y = rng.integers(0, CLASSES, n)
        x = rng.integers(0, 120, (n, 6, 6, 3))
        for i, label in enumerate(y):
            x[i, 2 * label : 2 * label + 2] += 100
        arrays |= {f"{split}_images": x.astype(np.uint8), f"{split}_labels": y.astype(np.uint8)}
    np.savez(file, **arrays)
    two = ["partition=classes", "partition.classes_per_client=2", "partition.clients=6"]
    return ["dataset=npz", f"dataset.path={file}", *two, "model=mlp", f"model.width={WIDTH}"]


def small_cnn(stripes):
    kept = [o for o in stripes if not o.startswith("model")]
    return [*kept, "model=cnn", "model.width=3", "model.blocks=2"]


def experiment(*overrides):
    return prepare(parse(compose(list(overrides))))


# --- by hand ------------------------------------------------------------------------------------


def module_of(theta):
    """A torch module with the parameters of a flat array: each layer's rows, its bias last."""
    module, flat = mlp((3, 6, 6), CLASSES, WIDTH, 1, "tanh"), torch.tensor(theta).reshape(-1)
    with torch.no_grad():
        for layer in (module[1], module[3]):
            rows, columns = layer.out_features, layer.in_features + 1
            matrix, flat = flat[: rows * columns].view(rows, columns), flat[rows * columns :]
            layer.weight.copy_(matrix[:, :-1])
            layer.bias.copy_(matrix[:, -1])
    return module.double()


def flat_of(module):
    parts = [torch.cat([m.weight, m.bias[:, None]], dim=1) for m in (module[1], module[3])]
    return torch.cat([p.flatten() for p in parts]).detach().numpy()


class TorchClient:
    """A client of pFedSOP, FedAvg or Ditto: a module, torch's SGD and a dense inverse."""

    def __init__(self, theta, data, batch):
        self.own, self.x, self.y, self.batch = module_of(theta), data.x.double(), data.y, batch
        self.drift, self.done = None, 0

    def sgd(self, module, lr, steps, done, after=lambda: None):
        optimizer = torch.optim.SGD(module.parameters(), lr=lr)
        parts = math.ceil(len(self.y) / self.batch)
        for k in range(done, done + steps):
            mine = slice(k % parts, None, parts)
            optimizer.zero_grad()
            cross_entropy(module(self.x[mine]), self.y[mine]).backward()
            optimizer.step()
            after()

    def pfedsop(self, shared, rule, lr, steps):
        vector = parameters_to_vector(self.own.parameters()).detach()
        if self.drift is not None and shared is not None:
            cosine = torch.nn.functional.cosine_similarity(self.drift, shared, dim=0)
            beta = 1 - torch.exp(-torch.exp(-rule.sharpness * (torch.arccos(cosine) - 1)))
            blend = (1 - beta) * self.drift + beta * shared
            fisher = torch.outer(blend, blend) + rule.rho * torch.eye(len(blend)).double()
            vector = vector - rule.lr * torch.linalg.solve(fisher, blend)
            vector_to_parameters(vector.clone(), self.own.parameters())
        self.sgd(self.own, lr, steps, self.done)
        self.done += steps
        self.drift = (vector - parameters_to_vector(self.own.parameters()).detach()) / lr
        return self.drift


def test_rounds_of_pfedsop_are_those_of_torch(stripes):
    few = ["strategy=pfedsop", "privacy=none", "participation=0.5", "rounds=4"]
    few += ["client.steps=3", "client.batch_size=13", "client.lr=0.2", "strategy.lr=0.7"]
    e = experiment(*stripes, *few)
    final = run(e, begin(e), lambda *_: False)
    hands = [TorchClient(e.theta, client.data, 13) for client in e.clients]
    shared = None
    for t in range(4):
        sent = [
            hands[i].pfedsop(shared, e.config.strategy, 0.2, 3)
            for i in e.config.schedule.present(t)
        ]
        shared = torch.stack(sent).mean(dim=0)
    assert len({hand.done for hand in hands}) > 1  # some sat out more often
    for i, hand in enumerate(hands):
        np.testing.assert_allclose(final.clients.theta[i, 0], flat_of(hand.own), atol=2e-5)
        assert final.clients.steps[i] == hand.done
    with torch.no_grad():
        scores = measure(e, final, None, 0.0)
        right = [
            float((hand.own(test.x.double()).argmax(1) == test.y).double().mean())
            for hand, test in zip(hands, e.own_tests, strict=True)
        ]
    assert scores["accuracy"] == pytest.approx(np.mean(right), abs=1e-9)


def test_rounds_of_ditto_are_those_of_torch(stripes):
    few = ["strategy=ditto", "privacy=none", "rounds=3", "client.lr=0.3", "client.steps=2"]
    few += ["client.batch_size=13", "client.own_lr=0.2", "client.own_steps=3"]
    e = experiment(*stripes, *few, "client.own_batch_size=13", "client.pull=0.8")
    final = run(e, begin(e), lambda *_: False)
    hands, w, p = [TorchClient(e.theta, c.data, 13) for c in e.clients], module_of(e.theta), 0.16
    for t in range(3):
        common = parameters_to_vector(w.parameters()).detach().clone()
        drifts = []
        for hand in hands:
            vector_to_parameters(common.clone(), w.parameters())
            hand.sgd(w, 0.3, 2, 2 * t)
            drifts.append(common - parameters_to_vector(w.parameters()).detach())

            def pull(own=hand.own, common=common):
                near = (parameters_to_vector(own.parameters()) + p * common) / (1 + p)
                vector_to_parameters(near.detach(), own.parameters())

            hand.sgd(hand.own, 0.2, 3, 3 * t, after=pull)
        vector_to_parameters(common - torch.stack(drifts).mean(dim=0), w.parameters())
    np.testing.assert_allclose(final.server.theta[0], flat_of(w), atol=2e-5)
    for model, hand in zip(personal_models(e, final), hands, strict=True):
        np.testing.assert_allclose(model[0], flat_of(hand.own), atol=2e-5)


@pytest.mark.parametrize("strategy", ["pfedsop", "fedavg_finetune", "ditto"])
def test_a_private_drift_is_made_of_clipped_noisy_gradients(stripes, strategy):
    few = [f"strategy={strategy}", "privacy.clip=0.1", "privacy.noise_multiplier=3", "rounds=1"]
    e = experiment(*stripes, *few, "client.steps=2", "client.lr=0.2")
    sent, _ = e.config.client.release(
        e.config.strategy.broadcast(begin(e).server),
        e.clients,
        begin(e).clients,
        e.plan,
        seeded(0, 0),
    )
    scale = 1.0 if strategy == "pfedsop" else 0.2  # the others send the way itself
    for out, (i, D) in zip(sent, e.clients, strict=True):
        y, total = e.theta.astype(np.float64), 0
        for k in range(2):
            S = 0
            for n in range(D.size):
                module = module_of(y)
                cross_entropy(module(D.x[n : n + 1].double()), D.y[n : n + 1]).backward()
                layers = [
                    torch.cat([m.weight.grad, m.bias.grad[:, None]], dim=1).flatten()
                    for m in (module[1], module[3])
                ]
                g = torch.cat(layers)
                S = S + g * min(1, 0.1 / float(g.norm()))
            E = seeded(0, 0)(i, k).rng.standard_normal(out.shape, np.float32)
            g = (S.numpy() + 0.1 * 3 * E) / D.size
            y, total = y - 0.2 * g, total + g
        np.testing.assert_allclose(out, scale * total, rtol=2e-3, atol=1e-5)


# --- whole runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", PERSONAL)
def test_models_survive_an_interruption_and_each_client_is_scored(stripes, strategy, tmp_path):
    few = [f"strategy={strategy}", "privacy=none", "participation=0.5", "rounds=4"]
    values = compose([*small_cnn(stripes), *few, "client.steps=2", "client.batch_size=20"])
    e = prepare(parse(values))
    whole = run(e, begin(e), lambda *_: False)
    half = run(e, begin(e), lambda state, G: state.server.t == 2)
    resumed = run(
        e, RunDir.create(tmp_path / "half", {}, {}, half).restore(begin(e)), lambda *_: False
    )
    for ours, theirs in zip(
        (resumed.server.theta, *resumed.server.buffers, *resumed.clients),
        (whole.server.theta, *whole.server.buffers, *whole.clients),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    if strategy != "fedavg_finetune":
        moved = [not np.array_equal(own, e.theta) for own in whole.clients.theta]
        took_part = {int(i) for t in range(4) for i in e.config.schedule.present(t)}
        assert moved == [i in took_part for i in range(6)]
    place = session.run(values, tmp_path / "run")
    rows = place.read_json("personal.json")
    assert [row["classes"] for row in rows] == [2] * 6
    accuracies = [row["accuracy"] for row in rows]
    assert place.read_json("summary.json")["accuracy"] == pytest.approx(np.mean(accuracies))
    with np.load(place.path / "personal.npz") as saved:
        np.testing.assert_array_equal(saved["theta"], personal_models(e, whole))


def test_no_features_are_extracted_for_a_network(stripes, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "fedsofim.data.features.Extraction.file", lambda *_: pytest.fail("features were made")
    )
    values = compose([*stripes, "strategy=alone", "rounds=1"])
    assert session.run(values, tmp_path / "run").metrics()


@pytest.mark.parametrize("strategy", PERSONAL)
def test_personal_networks_learn(stripes, strategy):
    few = [f"strategy={strategy}", "privacy=none", "rounds=12", "client.batch_size=20"]
    e = experiment(*stripes, *few)
    rows = []
    run(e, begin(e), lambda now, G: rows.append(measure(e, now, G, 0.0)) and False)
    assert rows[-1]["accuracy"] > 0.9


def own_network(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes, bias=False))


@pytest.mark.parametrize("strategy", PERSONAL)
def test_a_module_of_the_users_own_may_be_personal(stripes, strategy, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    kept = [o for o in stripes if not o.startswith("model")]
    own = ["model=module", "model.factory=test_personal_networks:own_network", "rounds=2"]
    e = experiment(*kept, *own, f"strategy={strategy}", "privacy.epsilon=5")
    models = personal_models(e, run(e, begin(e), lambda *_: False))
    assert models.shape == (6, 1, 3 * 6 * 6 * CLASSES)
    assert len({model.tobytes() for model in models}) > 1
    spent = measure(e, run(e, begin(e), lambda *_: False), None, 0.0)["epsilon"]
    assert spent == 0 if strategy == "alone" else 0 <= spent <= 5


@pytest.mark.parametrize("strategy", PERSONAL)
def test_clients_one_by_one_are_clients_all_at_once(stripes, strategy):
    """The simulation takes networks one by one, to hold one at a time."""
    few = [f"strategy={strategy}", "privacy=none", "rounds=1", "participation=0.5"]
    e = experiment(*small_cnn(stripes), *few, "client.steps=2")
    first = begin(e)
    last = run(e, first, lambda *_: False)
    present = e.config.schedule.present(0)
    client, received = e.config.client, e.config.strategy.broadcast(first.server)
    group = [e.clients[i] for i in present]
    before = type(first.clients)(*(rows[present] for rows in first.clients))
    _, together = client.release(received, group, before, e.plan, seeded(0, 0))
    together = client.train_own(received, group, together)
    for rows, all_rows in zip(together, last.clients, strict=True):
        np.testing.assert_array_equal(all_rows[present], rows)


# --- what plain steps rest on -------------------------------------------------------------------


@pytest.mark.parametrize("transformed", [False, True])
def test_the_unclipped_sum_is_that_of_the_records_gradients(stripes, transformed):
    few = ["transform=kfc", "transform.count=64"] if transformed else []
    e = experiment(*small_cnn(stripes), *few, "strategy=fedgd", "model.microbatch=7")
    D = e.clients[0].data
    if transformed:
        D = D.with_transform(begin(e).server.shared)
        assert D.factors is not None
    far = D.gradient_sum(e.theta, 1e6).value
    for exact in (False, True):
        whole = D.gradient_sum(e.theta, math.inf, exact).value
        assert whole.dtype == np.float32
        np.testing.assert_allclose(whole, far, rtol=2e-4, atol=2e-4 * np.abs(far).max())


def test_own_test_sets_copy_no_image_before_it_is_used(stripes):
    e = experiment(*stripes, "strategy=alone")
    assert len(e.own_tests) == 6
    for client, test in zip(e.clients, e.own_tests, strict=True):
        assert set(test.labels) == set(client.data.labels)
    assert sum(array.nbytes for array in e.own_tests.chosen) < e.test.x.numel()
