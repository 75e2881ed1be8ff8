"""What is shipped of a backbone comes from its weights as they are shipped, and can be resumed."""

import argparse
import importlib
import io
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from image_sets import write_npz

from fedsofim.core.errors import ConfigError
from fedsofim.data import backbones, npz
from fedsofim.data.backbones import load_backbone, random_backbone
from fedsofim.data.datasets import DatasetConfig, load
from fedsofim.data.extraction import embed, inputs
from fedsofim.data.recipe import Preprocessing

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def ship():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        return importlib.import_module("ship_backbone")


@pytest.fixture
def maker(ship, tmp_path, monkeypatch):
    monkeypatch.setattr(ship, "SHARD", 16)
    monkeypatch.setattr(ship, "PROBES", 6)
    for name in ("cifar10", "cifar100", "pathmnist"):
        write_npz(tmp_path / "images" / f"{name}.npz", size=32)
    torch.save(random_backbone("resnet20", seed=1).state_dict(), tmp_path / "trained.pt")
    for folder in ("weights", "embedded"):
        (tmp_path / "out" / folder).mkdir(parents=True)

    def make(weights=tmp_path / "trained.pt"):
        return ship.Maker(
            argparse.Namespace(
                backbone="resnet20",
                weights=weights,
                images=tmp_path / "images",
                work=tmp_path / "work",
                out=tmp_path / "out",
            )
        )

    return make


def test_weights_are_rounded_and_small_and_load_again(ship, maker, tmp_path):
    shipped = load_backbone("resnet20", maker().weights).state_dict()
    trained = torch.load(tmp_path / "trained.pt", weights_only=True)
    for name, value in trained.items():
        if value.ndim > 1:
            error = (shipped[name] - value).abs() / value.abs().clamp(min=1e-4)
            assert 0 < error.max() <= 2.0 ** -(ship.MANTISSA + 1)
        else:
            assert torch.equal(shipped[name], value)
    size = sum(v.numel() for v in trained.values())
    assert maker(None).weights.stat().st_size < 1.5 * size  # bytes, where half precision has 2


def test_features_are_those_of_the_shipped_weights(maker, tmp_path):
    made = maker()
    made.embed("pathmnist")
    file = tmp_path / "out" / "embedded" / "pathmnist-resnet20.npz"
    arrays = npz.read(file)
    npz.check_seal(arrays)
    data = load(DatasetConfig(name="npz", path=str(file)))
    with np.load(tmp_path / "images" / "pathmnist.npz") as images:
        x = images["train_images"]
    with torch.inference_mode():
        features = embed(load_backbone("resnet20", made.weights), inputs(x, Preprocessing()))
    assert np.abs(data.train_x - features).max() <= arrays["scale"].max() * 0.51 + 1e-5
    assert data.probe_x.shape == (6, 64)
    told = npz.provenance(arrays)
    assert told["backbone"]["weights"] == made.weights.name
    assert told["dataset"]["licence"].startswith("CC BY 4.0")


def test_what_was_interrupted_goes_on(ship, maker, tmp_path, monkeypatch):
    made = maker()
    made.embed("cifar10")
    file = tmp_path / "out" / "embedded" / "cifar10-resnet20.npz"
    first = npz.read(file)
    (made.work / "cifar10-train" / "001.npy").unlink()
    file.unlink()
    passed = []

    def counted(network, x):
        passed.append(len(x))
        return embed(network, x)

    monkeypatch.setattr(ship, "embed", counted)
    maker(None).embed("cifar10")
    assert passed == [16]
    assert npz.digest(npz.read(file)) == npz.digest(first)


def test_public_statistics_are_of_cifar100s_test_images(maker, tmp_path, capsys):
    maker().public()
    with np.load(tmp_path / "out" / "weights" / "resnet20-cifar100-public.npz") as saved:
        assert saved["covariance"].shape == (64, 64)
    assert "CIFAR-100: " in capsys.readouterr().out


def test_unpacked_weights_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(backbones, "LARGEST", 1000)
    (tmp_path / "bomb.pt.xz").write_bytes(lzma.compress(bytes(10**7)))
    with pytest.raises(ConfigError, match=r"bomb\.pt\.xz: .*more than 1,000 bytes"):
        load_backbone("resnet20", tmp_path / "bomb.pt.xz")


def test_an_array_may_not_claim_more_than_is_there(tmp_path):
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 512)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("train_x.npy", header.getvalue() + b"123")
    with pytest.raises(ConfigError, match=r"2,048,000,000,000 bytes, and 3 are there"):
        npz.read(tmp_path / "x.npz")
