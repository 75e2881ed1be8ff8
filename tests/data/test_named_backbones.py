"""Backbones of others: by name, with their own preprocessing, from files that run no code."""

import json
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("medmnist")  # the extra of images
from image_sets import write_folder, write_npz
from refusal import assert_refused
from torch import nn

from fedsofim.core.errors import ConfigError
from fedsofim.data import arithmetic, extraction
from fedsofim.data.backbones import backbone, random_backbone
from fedsofim.data.images import Reading, npz_images
from fedsofim.data.named_backbones import named_backbone
from fedsofim.data.recipe import IMAGENET, BackboneConfig, Preprocessing
from fedsofim.data.vision import torchvision

FEW = ["partition=iid", "partition.clients=2", "rounds=1", "features.cache=cache"]


class Small(nn.Module):
    """Means of the channels."""

    preprocessing = {"size": 8, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3))

    def forward(self, x):
        return x.mean(dim=(2, 3)) * self.scale


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's, in the current folder."""
    text = "from test_named_backbones import Small\ndef make():\n    return Small()\n"
    (tmp_path / "mynets.py").write_text(text + "def wrong():\n    return 3\n")
    monkeypatch.setitem(sys.modules, "test_named_backbones", sys.modules[__name__])
    monkeypatch.syspath_prepend(tmp_path)
    yield "mynets:make"
    sys.modules.pop("mynets", None)


def test_torchvisions_features_are_what_its_classifier_reads(tmp_path):
    models = torchvision("models")
    torch.manual_seed(3)
    theirs = models.resnet18(weights=None).eval()
    torch.save(theirs.state_dict(), tmp_path / "w.pt")
    ours = named_backbone("torchvision:resnet18", tmp_path / "w.pt")
    assert (ours.width, ours.preprocessing) == (512, IMAGENET)
    x = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(theirs.fc(ours.embed(x)), theirs(x))


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("mobilenet_v3_small", 1024),
        ("squeezenet1_1", 0),
        pytest.param("vit_b_16", 768, marks=pytest.mark.slow),
    ],
)
def test_heads_of_many_kinds_are_taken_away(name, width):
    if not width:
        with pytest.raises(ConfigError, match="has no linear layer"):
            named_backbone(f"torchvision:{name}", None)
        return
    assert named_backbone(f"torchvision:{name}", None).width == width


def test_timm_brings_its_own_preprocessing():
    torchvision()
    timm = pytest.importorskip("timm")
    name = "vit_tiny_patch16_224"
    ours = named_backbone(f"timm:{name}", None)
    config = timm.get_pretrained_cfg(name)
    assert ours.width == 192
    assert ours.preprocessing == Preprocessing(size=224, mean=config.mean, std=config.std)
    with pytest.raises(ConfigError, match="backbone=timm:nothing"):
        named_backbone("timm:nothing", None)


def test_random_weights_are_the_same_in_every_process():
    a, b = (named_backbone("torchvision:resnet18", None).state_dict() for _ in range(2))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_a_module_of_ones_own_in_a_run(mine, inside, tmp_path):
    write_folder(tmp_path / "set")
    given = ["dataset=folder", "dataset.root=set", f"backbone={mine}", "backbone.weights=random"]
    done = inside("run", *given, *FEW, "output.dir=out")
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "cache" / "features").iterdir()
    arrays = np.load(file)
    assert arrays["train_x"].shape == (12, 3)
    assert '"device": "cpu"' in str(arrays["provenance"])
    assert "features were made on cpu, in single precision" in done.stdout
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert (about["device"], about["features"]) == ("cpu", "cpu, in single precision")
    assert "features made on cpu" in (tmp_path / "out" / "report.html").read_text()
    assert inside("predict", "out", "set/test").returncode == 0
    assert_refused(inside("run", *given[:3], *FEW), "backbone.weights: a value is missing")
    own = [*given[:3], "backbone.weights=own"]
    assert_refused(inside("run", *own, *FEW), "name a file of weights, or random")


def test_features_are_those_of_the_modules_own_preprocessing(mine, tmp_path):
    images = npz_images(write_npz(tmp_path / "x.npz"), Reading())
    network = backbone(mine, None)
    found = extraction.extract(arithmetic.Workplace(network), images)["train_x"]
    pixels = np.load(tmp_path / "x.npz")["train_images"] / 255
    expected = (pixels.mean(axis=(1, 2)) - 0.5) / 0.5 * network.module.scale.detach().numpy()
    np.testing.assert_allclose(found, expected, atol=0.02)  # resized from 28 to 8 pixels


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("torchvision:resnet19", "torchvision has no such classifier; did you mean resnet18"),
        ("mynets:wrong", "makes no torch module"),
        ("mynets:nothing", "mynets has no nothing"),
        ("nowhere:make", "there is no module nowhere"),
    ],
)
def test_what_is_no_backbone_is_told(mine, name, told):
    with pytest.raises(ConfigError, match=told):
        named_backbone(name, None)


def test_weights_of_something_else_are_told(mine, tmp_path):
    torch.save({"other": torch.zeros(3)}, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=r"w\.pt: not the weights of mynets:make: it lacks scale"):
        named_backbone(mine, tmp_path / "w.pt")
    torch.save({"scale": torch.full((3,), torch.nan)}, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match="not finite"):
        named_backbone(mine, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match="choose one of resnet20, vgg16"):
        BackboneConfig(name="resnet18")


def test_where_memory_does_not_suffice_batches_are_halved(monkeypatch):
    network, most = random_backbone("resnet20", seed=0), []
    whole = network.embed

    def embed(x):
        if len(x) > 3:
            raise torch.OutOfMemoryError("too many")
        most.append(len(x))
        return whole(x)

    x = torch.rand(8, 3, 32, 32)
    with torch.inference_mode():
        expected = whole(x).numpy()
        monkeypatch.setattr(network, "embed", embed)
        np.testing.assert_allclose(extraction.embed(network, x), expected, atol=1e-5)
    assert most == [2, 2, 2, 2]


def test_a_device_that_is_not_there_is_told():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=r"features\.device=cuda: this machine"):
        arithmetic.device_of("cuda")
    assert arithmetic.device_of("cpu") == arithmetic.device_of("auto") == "cpu"


def test_a_model_that_timm_does_not_have_is_told_with_the_near_one():
    pytest.importorskip("timm")
    with pytest.raises(ConfigError, match="timm has no such model; did you mean resnet1"):
        named_backbone("timm:resnet19", None)
