"""Images become features once, and a file of features is what it says it is."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from image_sets import CLASSES, TRAIN, shared, write_folder, write_npz

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.data import arithmetic, extraction, npz
from fedsofim.data.backbones import load_backbone, random_backbone
from fedsofim.data.datasets import EMBEDDED, DatasetConfig, load
from fedsofim.data.features import Extraction, code, fingerprint, half, quantise, save
from fedsofim.data.images import Reading, npz_images
from fedsofim.data.probes import pink_noise
from fedsofim.data.recipe import OWN_WEIGHTS, BackboneConfig, FeaturesConfig, Preprocessing
from fedsofim.engines import ENGINES
from fedsofim.runs.experiment import begin, prepare


def plan(tmp_path, path=None, weights="own", probes=0, precision="half", **dataset):
    if path is not None:
        dataset |= {"name": "npz", "path": str(path)}
    options = FeaturesConfig(
        cache=str(tmp_path / "cache"), batch=16, probes=probes, precision=precision
    )
    return Extraction(
        dataset=DatasetConfig(**dataset), backbone=BackboneConfig(weights=weights), features=options
    )


@pytest.fixture
def extractions(monkeypatch):
    """How often the network was set to work."""
    calls = []
    real = extraction.extract

    def counted(*args, **kwargs):
        calls.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(extraction, "extract", counted)
    return calls


def test_features_do_not_depend_on_the_batch(tmp_path):
    images = npz_images(write_npz(tmp_path / "set.npz"), Reading())
    network = random_backbone("resnet20", seed=0)
    a, b = (extraction.extract(arithmetic.Workplace(network), images, batch=n) for n in (7, TRAIN))
    assert a.keys() == {f"{s}_{k}" for s in ("train", "val", "test") for k in "xy"}
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5)


def test_a_run_extracts_once_and_again_when_anything_that_matters_changes(tmp_path, extractions):
    source = write_npz(tmp_path / "set.npz")
    first = plan(tmp_path, source).file()
    assert plan(tmp_path, source).file() == first
    moved = source.rename(tmp_path / "elsewhere.npz").rename(tmp_path / "set.npz")
    assert plan(tmp_path, moved).file() == first
    assert len(extractions) == 1
    others = {plan(tmp_path, source, weights="random").file()}
    others |= {plan(tmp_path, source, probes=3).file()}
    others |= {plan(tmp_path, source, precision="uint8").file()}
    others |= {plan(tmp_path, source, classes=9).file()}
    write_npz(source, train=TRAIN - 1)
    others |= {plan(tmp_path, source).file()}
    assert len(extractions) == 6
    assert len(others | {first}) == 6


def test_the_cache_notices_changed_pixels(tmp_path):
    file = tmp_path / "a.bin"
    file.write_bytes(b"a" * 100)
    before = fingerprint([file], tmp_path / "memory")
    assert fingerprint([file], tmp_path / "memory") == before
    file.write_bytes(b"b" * 100)
    assert fingerprint([file], tmp_path / "memory") != before


def test_labels_and_owners_and_classes_come_through(tmp_path):
    owner = np.array([f"hospital {i % 5}" for i in range(TRAIN)])
    source = write_npz(tmp_path / "set.npz", train_client_id=owner)
    data = load(DatasetConfig(name="npz", path=str(source)), plan(tmp_path, source).file())
    np.testing.assert_array_equal(data.train_y, np.arange(TRAIN) % CLASSES)
    np.testing.assert_array_equal(data.client_id, owner)
    assert data.classes == CLASSES
    assert data.train_x.shape == (TRAIN, 64)


def test_a_folder_becomes_features(tmp_path):
    root = write_folder(tmp_path / "set")
    config = DatasetConfig(name="folder", root=str(root))
    data = load(config, plan(tmp_path, name="folder", root=str(root)).file())
    assert data.train_x.shape == (12, 64)
    assert data.classes == 2
    assert np.isfinite(data.train_x).all()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"train_labels": np.full(TRAIN, 200)}, "label"),
        ({"grey": True}, "grey"),
        ({"test_images": None}, "no test images"),
    ],
)
def test_nothing_is_cached_of_faulty_images(tmp_path, change, told):
    source = write_npz(tmp_path / "set.npz", **change)
    with pytest.raises(ConfigError, match=told) as error:
        plan(tmp_path, source, classes=4).file()
    assert str(source) in str(error.value)
    assert not list(tmp_path.glob("cache/features/*"))


def test_nothing_is_cached_of_a_folder_with_a_broken_image(tmp_path):
    root = write_folder(tmp_path / "set")
    broken = root / "test" / "malignant" / "3.png"  # the very last split
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(ConfigError, match=r"malignant/3\.png: a broken image"):
        plan(tmp_path, name="folder", root=str(root)).file()
    assert not [f for f in tmp_path.glob("cache/features/**/*") if f.is_file()]


def test_nothing_is_left_of_an_interrupted_extraction(tmp_path):
    def interrupt(what, done, total):
        if done >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan(tmp_path, write_npz(tmp_path / "set.npz")).file(interrupt)
    assert not [f for f in tmp_path.glob("cache/features/**/*") if f.is_file()]


def test_out_is_written_once_and_not_to_the_cache(tmp_path):
    source = write_npz(tmp_path / "set.npz")
    out = tmp_path / "out" / "mine.npz"
    plan(tmp_path, source).write(out)
    assert [f.name for f in out.parent.iterdir()] == ["mine.npz"]
    assert not list(tmp_path.glob("cache/features/*"))
    with pytest.raises(ConfigError, match="exists already"):
        plan(tmp_path, source).write(out)
    with pytest.raises(ConfigError, match="must end in"):
        plan(tmp_path, source).write(tmp_path / "mine.txt")
    cached = plan(tmp_path, source).file()
    plan(tmp_path, source).write(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == cached.read_bytes() == out.read_bytes()


def test_features_are_not_extracted_from_features(tmp_path):
    with pytest.raises(ConfigError, match=r"has features already"):
        plan(tmp_path, name="cifar10").write(tmp_path / "out.npz")
    assert plan(tmp_path, name="cifar10").file() == EMBEDDED / "cifar10-resnet20.npz"
    with pytest.raises(ConfigError, match=r"dataset\.root: name the folder"):
        plan(tmp_path, name="cifar10", weights="random").file()


def test_provenance_tells_all(tmp_path):
    source = write_npz(tmp_path / "bloodmnist.npz")
    file = plan(tmp_path, name="bloodmnist", root=str(source.parent), probes=5).file()
    arrays = npz.read(file)
    told = npz.provenance(arrays)
    assert told["dataset"]["licence"].startswith("CC BY 4.0")
    assert told["dataset"]["classes"] == 8
    assert told["backbone"]["weights"] == "resnet20-cifar100.pt"
    assert told["preprocessing"]["size"] == 32
    assert arrays["probe_x"].shape == (5, 64)


BACKBONES = [("resnet20", 64), ("vgg16", 512)]


@pytest.mark.parametrize("name", ["cifar10", "pathmnist"])
@pytest.mark.parametrize(("backbone", "width"), BACKBONES)
def test_embedded_files_are_sealed_and_their_weights_are_the_shipped_ones(name, backbone, width):
    arrays = npz.read(EMBEDDED / f"{name}-{backbone}.npz")
    npz.check_seal(arrays)
    told = npz.provenance(arrays)
    shipped = fingerprint_of(OWN_WEIGHTS[backbone])
    assert told["backbone"]["sha256"] == shipped
    assert told["dataset"]["licence"]
    assert json.loads(json.dumps(Preprocessing().describe())) == told["preprocessing"]
    assert arrays["probe_x"].shape == (4096, width)
    sizes = {"cifar10": (50_000, 10_000), "pathmnist": (89_996, 7_180)}[name]
    assert tuple(len(arrays[f"{split}_x"]) for split in ("train", "test")) == sizes


def fingerprint_of(file):
    import hashlib

    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_shipped_data_are_small():
    files = [*EMBEDDED.glob("*"), *OWN_WEIGHTS["resnet20"].parent.glob("*")]
    for backbone, most in (("resnet20", 12e6), ("vgg16", 45e6)):
        assert sum(f.stat().st_size for f in files if backbone in f.name) < most
    assert all("resnet20" in f.name or "vgg16" in f.name for f in files)


@pytest.mark.parametrize("dataset", ["cifar10", "pathmnist"])
def test_vgg16_trains_offline_like_resnet20(dataset):
    asked = [f"dataset={dataset}", "backbone=vgg16", "rounds=2"]
    for more in ([], ["settings=auto"], ["transform=public"], ["transform=kfc"]):
        experiment = prepare(parse(compose([*asked, *more])))
        state = ENGINES["local"](experiment, begin(experiment), lambda state, G: False)
        assert state.server.theta.shape[1] == 513
        assert np.isfinite(state.server.theta).all()


def test_a_changed_feature_is_noticed(tmp_path):
    arrays = npz.read(EMBEDDED / "cifar10-resnet20.npz")
    for name in ("train_x", "test_y", "lo", "provenance"):
        changed = dict(arrays)
        if name == "provenance":
            changed[name] = np.array(str(arrays[name]).replace("CIFAR-10", "CIFAR-11"))
        else:
            changed[name] = arrays[name].copy()
            changed[name].flat[7] += 1
        save(tmp_path / f"{name}.npz", changed)
        with pytest.raises(ConfigError, match=rf"{name}\.npz: damaged, or changed"):
            load(DatasetConfig(name="npz", path=str(tmp_path / f"{name}.npz")))


def test_a_seal_does_not_depend_on_the_order_of_arrays():
    a = {"x": np.arange(3), "y": np.array(["b", "c"])}
    assert npz.digest(a) == npz.digest(dict(reversed(a.items())))
    assert npz.digest(a) != npz.digest({"x": np.arange(3).astype(float), "y": a["y"]})
    assert npz.digest(a) != npz.digest({"x": np.arange(3)[:, None], "y": a["y"]})


features = arrays(
    np.float32, (5, 3), elements=st.floats(-100, 100, width=32, allow_subnormal=False)
)


@settings(deadline=None)
@given(features)
def test_quantisation_is_off_by_at_most_half_a_step(x):
    coded = quantise({"train_x": x, "train_y": np.zeros(5, np.uint8)})
    back = coded["lo"] + coded["scale"] * coded["train_x"]
    assert (np.abs(back - x) <= coded["scale"] * 0.5 + 1e-4).all()
    np.testing.assert_array_equal(
        code(back.astype(np.float32), coded["lo"], coded["scale"]), coded["train_x"]
    )


def test_half_precision_rounds_each_value_by_itself():
    x = np.random.default_rng(0).random((6, 4), np.float32)
    whole = half({"train_x": x})["train_x"]
    np.testing.assert_array_equal(whole[:3], half({"train_x": x[:3]})["train_x"])
    with pytest.raises(ConfigError, match="65504"):
        half({"train_x": np.full((1, 1), 1e6, np.float32)})


def test_probes_are_pink_and_the_same_every_time():
    a, b = (pink_noise(np.random.default_rng(0), 400) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(a.std(axis=(2, 3)), 1, atol=1e-4)
    power = (np.abs(np.fft.fft2(a)) ** 2).mean(axis=(0, 1))
    assert power[0, 1] / power[0, 4] == pytest.approx(16, rel=0.2)  # 1/f in amplitude
    white = pink_noise(np.random.default_rng(0), 400, alpha=0)
    power = (np.abs(np.fft.fft2(white)) ** 2).mean(axis=(0, 1))
    assert power[0, 1] / power[0, 4] == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize("name", ["cifar10", "pathmnist"])
@pytest.mark.parametrize("backbone", ["resnet20", "vgg16"])
def test_real_images_give_the_embedded_features(name, backbone):
    """Each sample image is one of the set's: its codes are a row of the embedded file."""
    images = npz_images(shared(f"images/{name}-sample.npz"), Reading())
    test = images.splits["test"]
    network = load_backbone(backbone, OWN_WEIGHTS[backbone])
    only = images._replace(splits={"test": test})
    x = extraction.extract(arithmetic.Workplace(network), only)["test_x"]
    old = npz.read(EMBEDDED / f"{name}-{backbone}.npz")
    codes = code(x, old["lo"], old["scale"])
    for row, label in zip(codes[:100], test.labels, strict=False):
        distance = np.abs(old["test_x"].astype(np.int16) - row).max(axis=1)
        nearest = int(distance.argmin())
        assert distance[nearest] <= 1
        assert old["test_y"][nearest] == label
