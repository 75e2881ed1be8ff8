"""Whole runs of deep networks."""

import math
from pathlib import Path

import numpy as np
import pytest

from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.pixels import load_pixels, normalise
from fedsofim.data.texts import Texts
from fedsofim.strategies import STRATEGIES

nn = pytest.importorskip("torch.nn")

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines.local import run
from fedsofim.runs.directory import RunDir
from fedsofim.runs.experiment import begin, prepare

CLASSES = 3


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


HEAD_ONLY = {"fedfc", "ridge"}
PERSONAL = {"pfedsop", "alone"}  # the server has no model, or none that moves


@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - HEAD_ONLY))
def test_every_rule_trains_a_network_under_kfc_and_resumes(bars, strategy, tmp_path):
    few = [f"strategy={strategy}", "transform=kfc", "rounds=3", "transform.refresh_every=2"]
    few += ["transform.count=64"]
    e, whole = trained([*bars, *few])
    assert whole.server.theta.dtype == np.float32
    assert np.isfinite(whole.server.theta).all()
    assert np.array_equal(whole.server.theta, e.theta) == (strategy in PERSONAL)
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
    e, last = trained([*kept, *own, "model.factory=test_network_runs:own_network"])
    assert e.theta.shape == (1, 12 * 12 * 3 * CLASSES)
    assert not np.array_equal(last.server.theta, e.theta)
    with pytest.raises(ConfigError, match=r"model\.factory=nowhere:f"):
        trained([*kept, *own, "model.factory=nowhere:f"])
    with pytest.raises(ConfigError, match=r"model\.factory"):
        trained([*kept, *own, "model.factory=test_deep:nothing"])


def test_a_resnet_with_group_norm_trains_end_to_end(bars):
    kept = [o for o in bars if not o.startswith("model")]
    few = ["model=resnet20", "model.width=8", "model.groups=4", "model.blocks=1", "rounds=2"]
    more = ["transform=kfc", "transform.count=32", "privacy.clip=1", "strategy=fedgd"]
    e, last = trained([*kept, *few, *more])
    assert e.config.private
    assert np.isfinite(last.server.theta).all()
    assert not np.array_equal(last.server.theta, e.theta)
    with pytest.raises(ConfigError, match=r"model\.groups=5: must divide the width, 8"):
        parse(compose([*kept, *few, "model.groups=5"]))


def test_the_networks_layers_are_those_of_resnet_20():
    """19 convolutions of 3 x 3, two of 1 x 1, a norm after each, and a linear layer."""
    network = parse(compose(["model=resnet20"])).model.network((3, 32, 32), 10)
    kinds = [type(layer).__name__ for layer in network.layers.values()]
    assert [kinds.count(k) for k in ("ConvLayer", "GroupNormLayer", "LinearLayer")] == [21, 21, 1]
    assert network.size == 272_474  # the 270 thousand of He et al., with two 1 x 1 shortcuts


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    language, rng = Texts(vocabulary=60, classes=3, length=12, topic=6, share=0.6), np.random
    (x, y), (test_x, test_y) = (language.draw(rng.default_rng(i), 400) for i in (0, 1))
    file = tmp_path_factory.mktemp("texts") / "texts.npz"
    np.savez(file, train_x=x, train_y=y, test_x=test_x, test_y=test_y)
    return ["dataset=npz", f"dataset.path={file}", "partition=iid", "partition.clients=2"]


@pytest.mark.parametrize("transform", ["none", "kfc"])
def test_texts_are_learned_and_random_tokens_are_the_probes(texts, transform):
    few = ["model=text", "model.vocabulary=60", "model.width=8", f"transform={transform}"]
    few += ["strategy=fedgd", "strategy.lr=2", "privacy.clip=1", "privacy.noise_multiplier=0.5"]
    e, last = trained([*texts, *few, "rounds=25"])
    assert e.config.private
    assert e.test.evaluate(last.server.theta)[0] > 0.6
    if transform == "kfc":
        tokens = e.probes.x.numpy()
        lengths = (tokens > 0).sum(axis=1)
        assert tokens.shape == (512, 12)
        assert set(np.unique(tokens)) == set(range(60))
        assert set(lengths) == set(range(1, 13))  # of any length, and then padding
        assert all((row[:n] > 0).all() for row, n in zip(tokens, lengths, strict=True))


def test_tokens_that_are_none_are_refused(texts):
    with pytest.raises(ConfigError, match="tokens must be whole numbers from 0 to 9"):
        prepare(parse(compose([*texts, "model=text", "model.vocabulary=10"])))
    with pytest.raises(ConfigError, match=r"takes \(length,\) tokens"):
        parse(compose(["model=text", "model.vocabulary=9"])).model.network((3, 8, 8), 2)
    white = ["model=text", "model.vocabulary=60", "transform=kfc", "transform.noise=white"]
    with pytest.raises(ConfigError, match="tokens are drawn alike"):
        prepare(parse(compose([*texts, *white])))


def test_public_images_are_probes(bars, tmp_path):
    rng = np.random.default_rng(1)
    public, labels = images(30, rng)
    np.savez(tmp_path / "public.npz", train_images=public, train_labels=labels)
    more = ["transform=kfc", f"transform.probes={tmp_path / 'public.npz'}", "transform.count=20"]
    e = prepare(parse(compose([*bars, *more])))
    assert e.probes.x.shape == (20, 3, 12, 12)
    known = {image.tobytes() for image in normalise(public)}
    assert all(image.tobytes() in known for image in e.probes.x.numpy())
    small, labels = images(30, rng, size=14)
    np.savez(tmp_path / "public.npz", train_images=small, train_labels=labels)
    with pytest.raises(ConfigError, match=r"probes have shape \(3, 14, 14\)"):
        prepare(parse(compose([*bars, *more])))


class Centred(nn.Module):
    """A record far away moves the mean, and with it the gradients of all: by 35 C, not by 2 C."""

    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), classes)

    def forward(self, x):
        return self.layer((x - x.mean(dim=0, keepdim=True)).flatten(1))


def test_a_module_that_mixes_records_is_refused(bars, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    kept = [o for o in bars if not o.startswith("model")]
    own = ["model=module", "rounds=2", "model.factory=test_network_runs:Centred"]
    with pytest.raises(ConfigError, match="depends on the others"):
        trained([*kept, *own])


def test_what_does_not_go_together_is_told(bars):
    for strategy in HEAD_ONLY:
        more = ["transform.radius=4"] if strategy == "ridge" else []
        with pytest.raises(ConfigError, match=rf"strategy={strategy}.*model=head"):
            parse(compose([*bars, f"strategy={strategy}", *more]))
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

    code = "import sys, fedsofim.runs.session; sys.exit('torch' in sys.modules)"
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
