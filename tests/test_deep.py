"""Deep models: per-record gradients against autograd, their transform, and whole private runs."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from data.datasets import DatasetConfig
from data.pixels import load_pixels
from fedsofim import deep, modules
from fedsofim.compose import compose
from fedsofim.config import ConfigError
from fedsofim.engines.local import run
from fedsofim.experiment import begin, prepare
from fedsofim.linalg import inverse_root
from fedsofim.records import Factors
from fedsofim.run_config import parse
from fedsofim.rundir import RunDir
from fedsofim.transform import KFC
from strategies import STRATEGIES

CLASSES = 3


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Twice(nn.Module):
    """Uses one layer two times, and a linear layer on sequences."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(6, 6)
        self.out = nn.Linear(6, CLASSES, bias=False)

    def forward(self, x):
        x = x.flatten(1, 2).transpose(1, 2)  # (N, W, C H)
        x = torch.tanh(self.mix(torch.tanh(self.mix(x))))
        return self.out(x).mean(dim=1)


MODULES = {
    "cnn": lambda: modules.cnn((2, 8, 8), CLASSES, 3, 2, "tanh"),
    "mlp": lambda: modules.mlp((2, 8, 8), CLASSES, 5, 2, "relu"),
    "no bias, odd shapes": lambda: nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 2, padding="same"),
        nn.Tanh(),
        nn.Conv2d(3, 3, 3, padding="valid", bias=False),
        nn.Flatten(),
        nn.LazyLinear(CLASSES, bias=False),
    ),
    "twice": Twice,
}


def make(name, n=7, seed=0):
    """A network in float64 with records and parameters."""
    rng = np.random.default_rng(seed)
    shape = (2, 3, 4) if name == "twice" else (2, 8, 8)
    module = MODULES[name]()
    module(torch.zeros(2, *shape))  # gives lazy layers their shape
    network = deep.DeepNetwork(module.double(), CLASSES, microbatch=3)
    records = network.records(rng.standard_normal((n, *shape)), rng.integers(0, CLASSES, n))
    return network, records, network.init(rng).astype(np.float64)


def autograd(network, records, theta):
    """Each record's gradient by `torch.func`, as one matrix a layer."""
    parameters = network._parameters(theta)

    def loss(parameters, x, y):
        logits = torch.func.functional_call(network.module, parameters, (x[None],))
        return nn.functional.cross_entropy(logits, y[None])

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(
        parameters, records.x, records.y
    )
    matrices = []
    for name, layer in network.layers.items():
        g = grads[f"{name}.weight"].flatten(2)
        if layer.bias is not None:
            g = torch.cat([g, grads[f"{name}.bias"][..., None]], dim=2)
        matrices.append(g)
    return matrices


def some_factors(network, seed=0):
    """Random symmetric factors for every layer, as matrices and as broadcast."""
    rng = np.random.default_rng(seed)

    def root(d):
        x = rng.standard_normal((d, 2 * d)) * np.geomspace(1, 0.1, d)[:, None]
        return inverse_root(x @ x.T, 1e-2)

    pairs = [(root(rows), root(columns)) for rows, columns in network.shapes]
    return pairs, Factors(*(np.concatenate([p[i].ravel() for p in pairs]) for i in (0, 1)))


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_each_layers_gradients_are_autograds(name):
    network, records, theta = make(name)
    ours = records.gradients(theta)
    for g, expected in zip(ours, autograd(network, records, theta), strict=True):
        assert g.abs().max() > 0
        torch.testing.assert_close(g, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODULES)
def test_each_layers_transformed_gradient_is_the_explicit_product(name):
    network, records, theta = make(name)
    pairs, factors = some_factors(network)
    ours = records.under(factors).gradients(theta)
    for g, expected, (U_G, U_A) in zip(ours, autograd(network, records, theta), pairs, strict=True):
        for one, other in zip(g, expected, strict=True):
            product = U_G @ other.numpy() @ U_A
            np.testing.assert_allclose(one.numpy(), product, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("clip", [0.05, 1.0, math.inf])
@pytest.mark.parametrize("kfc", [False, True])
def test_one_clip_over_all_layers(kfc, clip):
    network, records, theta = make("cnn", n=11)
    if kfc:
        records = records.under(some_factors(network)[1])
    whole = records.gradients(theta)
    flat = torch.cat([g.flatten(1) for g in whole], dim=1).numpy()
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    expected = (flat * np.minimum(1, clip / norm)).sum(axis=0)
    S = records.clipped_gradient_sum(theta, clip)
    assert S.shape == theta.shape == (1, network.size)
    np.testing.assert_allclose(S[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_replacing_a_record_moves_the_sum_by_at_most_2c(seed):
    network, records, theta = make("cnn", n=6, seed=seed)
    rng = np.random.default_rng(seed)
    other = records.x.clone()
    other[2] = torch.as_tensor(rng.standard_normal(other.shape[1:]) * 10.0 ** rng.integers(-3, 4))
    neighbour = network.records(other.numpy(), records.y.numpy())
    factors = some_factors(network, seed)[1]
    a, b = (r.under(factors).clipped_gradient_sum(theta, 0.1) for r in (records, neighbour))
    assert np.linalg.norm(a - b) <= 0.2 * (1 + 1e-9)


def test_a_record_that_is_not_finite_contributes_nothing():
    network, records, theta = make("cnn", n=6)
    x = records.x.clone()
    x[2] = torch.inf
    rest = [0, 1, 3, 4, 5]
    broken = network.records(x.numpy(), records.y.numpy())
    clean = network.records(x[rest].numpy(), records.y[rest].numpy())
    np.testing.assert_allclose(
        broken.clipped_gradient_sum(theta, 0.1), clean.clipped_gradient_sum(theta, 0.1), rtol=1e-9
    )


def test_microbatches_change_memory_and_not_results():
    network, records, theta = make("cnn", n=11)
    large = deep.DeepNetwork(network.module, CLASSES, microbatch=100)
    other = large.records(records.x.numpy(), records.y.numpy())
    np.testing.assert_allclose(
        records.clipped_gradient_sum(theta, 0.1), other.clipped_gradient_sum(theta, 0.1), rtol=1e-10
    )
    assert records.evaluate(theta) == pytest.approx(other.evaluate(theta))


def test_a_network_without_hidden_layers_is_the_linear_head():
    from fedsofim import head

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((30, 5)), rng.integers(0, CLASSES, 30)
    network = deep.DeepNetwork(modules.mlp((5,), CLASSES, 1, 0, "tanh").double(), CLASSES)
    theta = network.init(rng).astype(np.float64)
    ours, theirs = network.records(x, y), head.examples(x, y, CLASSES)
    square = theta.reshape(CLASSES, 6)
    for a, b in zip(ours.curvature(theta)[0], theirs.curvature(square)[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    factors = KFC(damping=1e-3).factors(theirs.curvature(square))
    for clip in (0.3, math.inf):
        np.testing.assert_allclose(
            ours.under(factors).clipped_gradient_sum(theta, clip).reshape(square.shape),
            theirs.under(factors).clipped_gradient_sum(square, clip),
            rtol=1e-6,
        )
    assert ours.evaluate(theta) == pytest.approx(theirs.evaluate(square))


@pytest.mark.parametrize("name", ["cnn", "mlp", "no bias, odd shapes"])
def test_whitened_layers_have_the_identity_as_covariance(name):
    """With a record's gradient of rank one, U_G and U_A whiten its two sides."""
    network, records, theta = make(name, n=40)
    layers = records.curvature(theta)
    for (rows, columns), (G, A) in zip(network.shapes, layers, strict=True):
        assert G.shape == (rows, rows)
        assert A.shape == (columns, columns)
        for C in (G, A):
            U = inverse_root(C, 1e-3)
            eigenvalues, Q = np.linalg.eigh(C)
            damped = eigenvalues / (eigenvalues + 1e-3 * eigenvalues[-1])
            np.testing.assert_allclose(U @ C @ U, (Q * damped) @ Q.T, atol=1e-8)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), "1: BatchNorm2d"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)), "1: BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "1: Dropout"),
        (nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4)), "0: Embedding, 1: LayerNorm"),
        (nn.Conv2d(4, 4, 3, groups=2), "the module itself: Conv2d"),
        (nn.Conv2d(4, 4, 3, padding_mode="circular"), "Conv2d"),
        (nn.ReLU(), "no Linear or Conv2d"),
    ],
)
def test_layers_that_do_not_fit_are_named(module, told):
    with pytest.raises(ConfigError, match=told):
        deep.DeepNetwork(module, CLASSES)


def test_tied_weights_are_refused():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    with pytest.raises(ConfigError, match=r"1: Linear \(shares its parameters\)"):
        deep.DeepNetwork(module, CLASSES)


# --- whole runs ---------------------------------------------------------------------------------


def images(n, rng, size=12):
    """Images of three classes: where the bright bar is, in noise."""
    y = rng.integers(0, CLASSES, n)
    x = rng.integers(0, 120, (n, size, size, 3))
    for i, label in enumerate(y):
        x[i, 4 * label : 4 * label + 4] += 100
    return x.astype(np.uint8), y[:, None].astype(np.uint8)


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("images") / "bars.npz"
    (train_x, train_y), (test_x, test_y) = images(240, rng), images(120, rng)
    np.savez(
        file, train_images=train_x, train_labels=train_y, test_images=test_x, test_labels=test_y
    )
    tiny = ["model=cnn", "model.width=4", "model.blocks=2"]
    return ["dataset=npz", f"dataset.path={file}", "partition=iid", "partition.clients=3", *tiny]


def trained(overrides):
    e = prepare(parse(compose(overrides)))
    return e, run(e, begin(e), lambda *_: False)


HEAD_ONLY = {"fedfc", "pfedsop", "fedavg_finetune", "alone"}


@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - HEAD_ONLY))
def test_every_rule_trains_a_network_under_kfc_and_resumes(bars, strategy, tmp_path):
    few = [f"strategy={strategy}", "transform=kfc", "rounds=3", "transform.refresh_every=2"]
    few += ["transform.count=64"]
    e, whole = trained([*bars, *few])
    assert whole.server.theta.dtype == np.float32
    assert np.isfinite(whole.server.theta).all()
    assert not np.array_equal(whole.server.theta, e.theta)
    half = run(e, begin(e), lambda state, G: state.server.t == 1)
    place = RunDir.create(tmp_path / "run", {}, {}, half)
    resumed = run(e, place.restore(begin(e)), lambda *_: False)
    np.testing.assert_array_equal(resumed.server.theta, whole.server.theta)


@pytest.mark.parametrize("model", ["cnn", "mlp"])
@pytest.mark.parametrize("transform", ["none", "kfc"])
def test_networks_learn_from_pixels_under_privacy(bars, model, transform):
    few = [f"model={model}", "model.width=8", f"transform={transform}", "privacy.clip=1"]
    few += ["strategy=fedgd", "strategy.lr=1", "rounds=25", "privacy.noise_multiplier=1"]
    kept = [o for o in bars if not o.startswith("model")]
    blocks = ["model.blocks=2"] if model == "cnn" else []
    e, last = trained([*kept, *few, *blocks])
    assert e.config.private
    assert e.test.evaluate(last.server.theta)[0] > 0.8


def test_an_mlp_takes_features_and_their_probes():
    few = ["model=mlp", "model.width=4", "transform=kfc", "rounds=1", "partition.clients=2"]
    e = prepare(parse(compose([*few, "transform.count=100"])))
    assert e.theta.shape == (1, 65 * 4 + 5 * 10)
    assert e.probes.size == 100


def own_network(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes, bias=False))


def test_a_module_of_the_users_own(bars, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    kept = [o for o in bars if not o.startswith("model")]
    own = ["model=module", "rounds=2", "transform=kfc"]
    e, last = trained([*kept, *own, "model.factory=test_deep:own_network"])
    assert e.theta.shape == (1, 12 * 12 * 3 * CLASSES)
    assert not np.array_equal(last.server.theta, e.theta)
    with pytest.raises(ConfigError, match=r"model\.factory=nowhere:f"):
        trained([*kept, *own, "model.factory=nowhere:f"])
    with pytest.raises(ConfigError, match=r"model\.factory"):
        trained([*kept, *own, "model.factory=test_deep:nothing"])


def test_what_does_not_go_together_is_told(bars):
    for strategy in HEAD_ONLY:
        with pytest.raises(ConfigError, match=rf"strategy={strategy}.*model=head"):
            parse(compose([*bars, f"strategy={strategy}"]))
    with pytest.raises(ConfigError, match="model=cnn: takes images"):
        prepare(parse(compose(["model=cnn"])))
    with pytest.raises(ConfigError, match=r"model\.blocks=5: 12 x 12 images are too small"):
        prepare(parse(compose([*bars, "model.blocks=5"])))


def test_pixels_are_scaled_by_public_constants_only(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, 6, 6, 3)).astype(np.uint8)
    y = np.arange(20) % 2
    dim = x // 4
    for name, train in (("a", x), ("b", dim)):
        np.savez(tmp_path / name, train_images=train, train_labels=y, test_images=x, test_labels=y)
    a, b = (
        load_pixels(DatasetConfig(name="npz", path=str(tmp_path / f"{name}.npz")), tmp_path)
        for name in "ab"
    )
    assert a.train_x.shape == (20, 3, 6, 6)
    np.testing.assert_array_equal(a.test_x, b.test_x)  # however the private images are
    expected = (x[0, 2, 3, 1] / 255 - 0.4865) / 0.2564
    assert a.train_x[0, 1, 2, 3] == pytest.approx(expected, rel=1e-5)


def test_the_head_starts_without_torch(root, environment):
    import subprocess
    import sys

    code = "import sys, fedsofim.session; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment, cwd=root).returncode == 0


# --- real images --------------------------------------------------------------------------------


def sample(name):
    for parent in Path(__file__).resolve().parents:
        file = parent / "shared" / "data" / "images" / f"{name}-sample.npz"
        if file.is_file():
            return file
    pytest.skip(f"{name}-sample.npz is not at hand: shared/data/images is in no parent directory")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "pathmnist"])
@pytest.mark.parametrize("transform", ["none", "kfc"])
def test_a_small_cnn_trains_on_real_images(name, transform):
    few = ["partition=iid", "partition.clients=4", "model=cnn", "model.width=8"]
    few += ["strategy=sofim", "strategy.lr=0.5", "strategy.rho=0.5", "strategy.beta=0.9"]
    few += ["privacy.clip=1", "privacy.noise_multiplier=1", "rounds=25", "aggregation=size"]
    few += [f"transform={transform}", "transform.count=256"] if transform == "kfc" else []
    e, last = trained(["dataset=npz", f"dataset.path={sample(name)}", *few])
    before = e.test.evaluate(e.theta)[0]
    after = e.test.evaluate(last.server.theta)[0]
    print(f"{name} {transform}: {100 * before:.1f} % -> {100 * after:.1f} %")
    assert e.config.private
    assert after > before + 0.08
