"""Predictions for files, and graphs that take images, from a run that was trained on images."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from image_sets import CLASSES, images, write_folder, write_npz
from PIL import Image
from refusal import assert_refused

import fedsofim
from fedsofim.api.images import preparation

onnxruntime = pytest.importorskip("onnxruntime")
FEW = ["partition=iid", "partition.clients=2", "rounds=3", "privacy=none", "features.probes=0"]


@pytest.fixture
def on_images(inside, tmp_path):
    """A run on images, through the project's own backbone."""
    write_npz(tmp_path / "images.npz")
    words = ["dataset=npz", "dataset.path=images.npz", "features.cache=cache", *FEW]
    done = inside("run", *words, "output.dir=run")
    assert done.returncode == 0, done
    return fedsofim.load(tmp_path / "run")


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_images_are_predicted_as_in_the_run(inside, on_images, tmp_path):
    done = inside("predict", "run", "images.npz", "--out", "labels.csv")
    assert (done.returncode, done.stdout) == (0, "")
    share = 100 * on_images.final_accuracy
    assert done.stderr.startswith(f"16 records, {share:.2f} % with the label that the file tells")
    told = rows((tmp_path / "labels.csv").read_text())
    assert list(told[0]) == ["record", "label", "probability", *(f"p_{k}" for k in range(CLASSES))]
    with np.load(tmp_path / "images.npz") as file:
        x = preparation(on_images.config.checked)(file["test_images"])
    np.testing.assert_array_equal([int(row["label"]) for row in told], on_images.model.predict(x))
    p = [[float(row[f"p_{k}"]) for k in range(CLASSES)] for row in told]
    np.testing.assert_allclose(p, on_images.model.predict_proba(x), rtol=1e-4, atol=1e-6)


def test_one_graph_takes_images_of_any_size(inside, on_images, tmp_path, rng):
    done = inside("export", "run", "--to", "onnx", "--images")
    assert "onnxruntime's probabilities differ from ours by at most" in done.stdout
    session = onnxruntime.InferenceSession(tmp_path / "run" / "model.onnx")
    prepare = preparation(on_images.config.checked)
    for size in ((28, 28), (32, 32), (64, 48), (20, 224)):
        pixels = rng.integers(0, 256, (3, *size, 3)).astype(np.uint8)
        (p,) = session.run(None, {"images": pixels})
        ours = on_images.model.predict_proba(prepare(pixels))
        np.testing.assert_allclose(p, ours, atol=2e-6)


def test_a_folder_a_picture_and_an_array(inside, on_images, tmp_path):
    write_folder(tmp_path / "new", per_class=2)
    told = rows(inside("predict", "run", "new/test").stdout)
    assert [row["record"] for row in told] == [
        f"{name}/{file}" for name in ("benign", "malignant") for file in ("0.png", "1.bmp")
    ]
    (one,) = rows(inside("predict", "run", "new/test/malignant/1.bmp").stdout)
    assert one["label"] == told[3]["label"]
    for k in range(CLASSES):  # a picture by itself may round otherwise than among others
        assert float(one[f"p_{k}"]) == pytest.approx(float(told[3][f"p_{k}"]), abs=2e-6)
    pixels, _ = images(np.random.default_rng(3), 5)
    np.save(tmp_path / "five.npy", pixels)
    assert len(rows(inside("predict", "run", "five.npy").stdout)) == 5


def test_features_know_the_backbone_that_made_them(inside, on_images, tmp_path):
    words = ["dataset=npz", "dataset.path=images.npz", "features.probes=0", "features.cache=other"]
    random = ["backbone=vgg16", "backbone.weights=random"]
    assert inside("features", *words, "out=same.npz").returncode == 0
    assert inside("features", *words, *random, "out=vgg.npz").returncode == 0
    same = rows(inside("predict", "run", "same.npz").stdout)
    assert [row["label"] for row in same] == [
        row["label"] for row in rows(inside("predict", "run", "images.npz").stdout)
    ]
    assert_refused(inside("predict", "run", "vgg.npz"), "were made by vgg16", "by resnet20")
    # A run on a file of features takes images, since the file says what made it.
    done = inside("run", "dataset=npz", "dataset.path=same.npz", *FEW, "output.dir=second")
    assert done.returncode == 0
    assert len(rows(inside("predict", "second", "images.npz").stdout)) == 16


def test_weights_that_are_gone_are_asked_for(inside, tmp_path):
    write_npz(tmp_path / "images.npz")
    own = Path(fedsofim.__file__).parent.parent / "data" / "weights" / "resnet20-cifar100.pt"
    import torch

    state = torch.load(own, weights_only=True)
    torch.save({k: v * 1.01 for k, v in state.items()}, tmp_path / "mine.pt")
    words = ["dataset=npz", "dataset.path=images.npz", "features.cache=cache", "features.probes=0"]
    assert inside("features", *words, "backbone.weights=mine.pt", "out=f.npz").returncode == 0
    made = ["dataset=npz", "dataset.path=f.npz", "features.cache=cache", *FEW]
    assert inside("run", *made, "output.dir=run").returncode == 0
    assert_refused(inside("predict", "run", "images.npz"), "weights mine.pt", "--weights")
    done = inside("predict", "run", "images.npz", "--weights", "mine.pt")
    assert (done.returncode, len(rows(done.stdout))) == (0, 16)
    assert_refused(inside("predict", "run", "images.npz", "--weights", own), "are not here")


def test_plain_features_and_mistakes(inside, tmp_path, small, arrays):
    assert inside("run", *small, "output.dir=run").returncode == 0
    np.savez(tmp_path / "new.npz", x=arrays["test_x"])
    told = rows(inside("predict", "run", "new.npz").stdout)
    model = fedsofim.load(tmp_path / "run").model
    assert [int(row["label"]) for row in told] == model.predict(arrays["test_x"]).tolist()
    assert len(rows(inside("predict", "run", "small.npz", "--array", "train_x").stdout)) == 240
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 9), np.float32))
    np.savez(tmp_path / "none.npz", z=np.zeros((3, 5)))
    np.savez(tmp_path / "text.npz", x=np.array([["a", "b"]]))
    (tmp_path / "bad.npz").write_bytes(b"PK")
    Image.new("RGB", (8, 8)).save(tmp_path / "picture.png")
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("wide.npz", ["wide.npz: x holds float32 of shape (3, 9)", "shape (5,)"]),
        ("none.npz", ["none.npz: no array x, images", "it holds z", "--array"]),
        ("text.npz", ["text.npz: x: holds <U1"]),
        ("bad.npz", ["bad.npz: not a readable .npz file"]),
        ("picture.png", ["small.npz: does not say what made it", "takes features alone"]),
        ("empty", ["empty: a folder with no images"]),
        ("nothing", ["nothing: there is no such file or folder"]),
    ):
        assert_refused(inside("predict", "run", name), *words)
    assert_refused(inside("predict", "run", "new.npz", "--array", "y"), "no array y")
    assert_refused(inside("predict", "nowhere", "new.npz"), "nowhere: not a run directory")


def test_a_network_from_pixels_on_takes_images(inside, tmp_path, rng):
    write_npz(tmp_path / "images.npz", size=12)
    words = ["dataset=npz", "dataset.path=images.npz", *FEW, "model=cnn", "model.blocks=2"]
    assert inside("run", *words, "output.dir=run").returncode == 0
    history = fedsofim.load(tmp_path / "run")
    done = inside("predict", "run", "images.npz", "--out", "labels.csv")
    assert f"16 records, {100 * history.final_accuracy:.2f} % with" in done.stderr
    assert inside("export", "run", "--to", "onnx", "--images").returncode == 0
    pixels = rng.integers(0, 256, (5, 12, 12, 3)).astype(np.uint8)
    session = onnxruntime.InferenceSession(tmp_path / "run" / "model.onnx")
    (p,) = session.run(None, {"images": pixels})
    ours = history.model.predict_proba(preparation(history.config.checked)(pixels))
    np.testing.assert_allclose(p, ours, atol=2e-6)
