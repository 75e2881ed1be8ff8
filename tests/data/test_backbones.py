"""The backbones are the hub's: same names, same shapes, same values through either."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
from image_sets import shared
from PIL import Image

from fedsofim.core.errors import ConfigError
from fedsofim.data.backbones import BACKBONES, load_backbone, random_backbone
from fedsofim.data.extraction import inputs
from fedsofim.data.recipe import OWN_WEIGHTS, Preprocessing


def resnet20_names():
    """The parameters of the hub's cifar100_resnet20, with their shapes."""
    names = {"conv1.weight": (16, 3, 3, 3), **norm("bn1", 16)}
    before = 16
    for layer, width in enumerate((16, 32, 64), start=1):
        for block in range(3):
            at = f"layer{layer}.{block}"
            names |= {f"{at}.conv1.weight": (width, before, 3, 3), **norm(f"{at}.bn1", width)}
            names |= {f"{at}.conv2.weight": (width, width, 3, 3), **norm(f"{at}.bn2", width)}
            if before != width:
                names[f"{at}.downsample.0.weight"] = (width, before, 1, 1)
                names |= norm(f"{at}.downsample.1", width)
            before = width
    return {**names, "fc.weight": (100, 64), "fc.bias": (100,)}


def vgg16_names():
    """The parameters of the hub's cifar100_vgg16_bn, with their shapes."""
    names, before = {}, 3
    places = (0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40)
    widths = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
    for i, width in zip(places, widths, strict=True):
        names |= {f"features.{i}.weight": (width, before, 3, 3), f"features.{i}.bias": (width,)}
        names |= norm(f"features.{i + 1}", width)
        before = width
    for i, width in ((0, 512), (3, 512), (6, 100)):
        names |= {f"classifier.{i}.weight": (width, 512), f"classifier.{i}.bias": (width,)}
    return names


def norm(at, width):
    own = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (width,))
    return {f"{at}.{k}": v for k, v in {**own, "num_batches_tracked": ()}.items()}


@pytest.mark.parametrize(("name", "names"), [("resnet20", resnet20_names), ("vgg16", vgg16_names)])
def test_parameters_are_named_and_shaped_as_the_hubs(name, names):
    state = BACKBONES[name]().state_dict()
    assert {k: tuple(v.shape) for k, v in state.items()} == names()


def test_the_own_weights_load_into_the_hubs_naming_and_back(tmp_path):
    state = torch.load(OWN_WEIGHTS["resnet20"], weights_only=True)
    assert {k: tuple(v.shape) for k, v in state.items()} == resnet20_names()
    network = load_backbone("resnet20", OWN_WEIGHTS["resnet20"])
    torch.save(network.state_dict(), tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt", weights_only=True)
    assert all(torch.equal(again[name], value) for name, value in state.items())
    assert list(again) == list(state)


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_features_are_the_pooled_last_map_and_classify(name):
    network = random_backbone(name, seed=1)
    x = torch.randn(3, 3, 32, 32)
    seen = {}
    last = network.layer3 if name == "resnet20" else network.features
    last.register_forward_hook(lambda module, given, out: seen.update(map=out))
    with torch.no_grad():
        features, logits = network.embed(x), network(x)
    assert features.shape == (3, network.width)
    torch.testing.assert_close(features, seen["map"].mean(dim=(2, 3)))
    assert (seen["map"] >= 0).all()  # after the last ReLU
    classifier = network.fc if name == "resnet20" else network.classifier
    torch.testing.assert_close(logits, classifier(features))


def test_random_weights_follow_the_seed_and_leave_the_global_stream_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    a, b, c = (random_backbone("resnet20", seed=s) for s in (1, 1, 2))
    assert torch.rand(1) == expected
    assert torch.equal(a.conv1.weight, b.conv1.weight)
    assert not torch.equal(a.conv1.weight, c.conv1.weight)


def test_half_precision_weights_load(tmp_path):
    state = torch.load(OWN_WEIGHTS["resnet20"], weights_only=True)
    halves = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    torch.save(halves, tmp_path / "half.pt")
    network = load_backbone("resnet20", tmp_path / "half.pt")
    assert network.conv1.weight.dtype == torch.float32
    torch.testing.assert_close(network.conv1.weight, state["conv1.weight"], atol=1e-3, rtol=1e-3)


class Evil:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("what", ["text", "empty", "pickle", "object", "vgg", "nan", "short"])
def test_faulty_weights_are_told_with_their_file(tmp_path, capfd, what):
    file = tmp_path / "weights.pt"
    state = torch.load(OWN_WEIGHTS["resnet20"], weights_only=True)
    if what == "text":
        file.write_text("hello")
    elif what == "empty":
        file.touch()
    elif what == "short":
        file.write_bytes(OWN_WEIGHTS["resnet20"].read_bytes()[:100_000])
    else:
        content = {
            "pickle": {"fc.bias": Evil()},
            "object": [1, 2],
            "vgg": BACKBONES["vgg16"]().state_dict(),
            "nan": {**state, "fc.bias": torch.full((100,), float("nan"))},
        }[what]
        torch.save(content, file)
    with pytest.raises(ConfigError, match=r"weights\.pt: ") as error:
        load_backbone("resnet20", file)
    assert "\n" not in str(error.value)
    assert "executed" not in capfd.readouterr().out


def test_preprocessing_is_the_reference(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 3)).astype(np.uint8)
    how = Preprocessing()
    tensor = torch.from_numpy(x).permute(0, 3, 1, 2) / 255
    resized = nn.functional.interpolate(tensor, (32, 32), mode="bilinear", align_corners=False)
    mean, std = torch.tensor(how.mean).view(3, 1, 1), torch.tensor(how.std).view(3, 1, 1)
    torch.testing.assert_close(inputs(x, how), (resized - mean) / std)
    torch.testing.assert_close(inputs(list(x), how), inputs(x, how))


def test_shrinking_averages_what_a_pixel_covers():
    board = (np.indices((128, 128)).sum(axis=0) % 2 * 255).astype(np.uint8)  # grey from afar
    x = inputs(
        np.repeat(board[None, :, :, None], 3, axis=3), Preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    )
    assert x.shape == (1, 3, 32, 32)
    assert float((x - 0.5).abs().max()) < 0.01


def cifar100_test(mosaics=4):
    folder = shared("images/cifar100")
    tiles = []
    for i in range(mosaics):
        with Image.open(folder / f"test-{i:02d}.webp") as opened:
            grid = np.asarray(opened.convert("RGB")).reshape(50, 32, 50, 32, 3)
        tiles.append(grid.swapaxes(1, 2).reshape(-1, 32, 32, 3))
    with np.load(folder / "labels.npz") as labels:
        return np.concatenate(tiles), labels["test"][: 2500 * mosaics]


def cifar100_accuracy(mosaics, most=None):
    x, y = (a[:most] for a in cifar100_test(mosaics))
    network = load_backbone("resnet20", OWN_WEIGHTS["resnet20"]).to(
        memory_format=torch.channels_last
    )
    found = []
    with torch.inference_mode():
        for start in range(0, len(x), 500):
            found.append(network(inputs(x[start : start + 500], Preprocessing())).argmax(1))
    return float((torch.cat(found).numpy() == y).mean())


def test_the_own_weights_know_cifar100():
    assert cifar100_accuracy(1, most=1000) == pytest.approx(0.646, abs=0.03)


@pytest.mark.slow
def test_the_own_weights_score_what_their_readme_says():
    assert cifar100_accuracy(4) == pytest.approx(0.6464, abs=2e-4)
