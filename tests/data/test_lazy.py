"""Nothing is made that nobody asked for, and nothing that was made is lost."""

import numpy as np
import pytest
from image_sets import write_npz
from refusal import assert_refused

from fedsofim.data import npz, probe_cache
from fedsofim.data.arithmetic import Workplace
from fedsofim.data.backbones import load_backbone
from fedsofim.data.extraction import probe_features
from fedsofim.data.recipe import OWN_WEIGHTS

FEW = ["partition=iid", "partition.clients=2", "rounds=2", "features.cache=cache"]


@pytest.fixture
def run(inside, tmp_path, monkeypatch):
    """Train on small images, with few probes."""
    monkeypatch.setattr(probe_cache, "COUNT", 12)
    write_npz(tmp_path / "x.npz")
    given = ["run", "dataset=npz", "dataset.path=x.npz", *FEW]
    return lambda *more: inside(*given, *more)


def test_probes_are_made_when_a_transform_asks_for_them(run, tmp_path):
    assert run().returncode == 0
    (features,) = (tmp_path / "cache" / "features").iterdir()
    assert "probe_x" not in npz.headers(features)
    assert not (tmp_path / "cache" / "probes").exists()
    assert run("transform=kfc").returncode == 0
    (file,) = (tmp_path / "cache" / "probes").iterdir()
    network = load_backbone("resnet20", OWN_WEIGHTS["resnet20"])
    made = probe_features(Workplace(network), 12).astype(np.float16)
    np.testing.assert_array_equal(npz.read(file)["probe_x"], made)
    assert [features] == list((tmp_path / "cache" / "features").iterdir())


def test_probes_are_made_once_and_serve_other_data(run, inside, tmp_path):
    assert run("transform=kfc").returncode == 0
    (file,) = (tmp_path / "cache" / "probes").iterdir()
    before = file.stat().st_mtime_ns
    write_npz(tmp_path / "other.npz", train=30)
    other = ["run", "dataset=npz", "dataset.path=other.npz", *FEW, "transform=kfc"]
    assert inside(*other).returncode == 0
    assert file.stat().st_mtime_ns == before
    assert [file] == list((tmp_path / "cache" / "probes").iterdir())
    file.write_bytes(b"PK" + bytes(100))
    assert_refused(inside(*other), str(file), "not a readable .npz file")


def test_probes_go_with_features_where_that_is_asked(run, tmp_path):
    assert run("features.probes=5", "transform=kfc").returncode == 0
    (features,) = (tmp_path / "cache" / "features").iterdir()
    assert npz.headers(features)["probe_x"].shape == (5, 64)
    assert not (tmp_path / "cache" / "probes").exists()
    assert run("features.probes=0").returncode == 0
    assert_refused(run("features.probes=0", "transform=kfc"), "this data brings no probes")


def test_a_cache_that_cannot_be_written_is_told_before_the_work(run, inside, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    lost = []
    monkeypatch.setattr("fedsofim.data.extraction.extract", lambda *a, **k: lost.append(a))
    assert_refused(run(), "features.cache: ", "cannot be written", "name another place")
    words = ["features", "dataset=npz", "dataset.path=x.npz", "out=cache/f.npz"]
    assert_refused(inside(*words, "features.cache=c2"), "out: ", "cache cannot be written")
    assert lost == []
