"""From images to a federated run, with one command."""

import json

import numpy as np
import pytest
from image_sets import shared, write_folder, write_npz

from fedsofim.cli import main as cli


@pytest.fixture
def fedsofim(monkeypatch, tmp_path, capsys):
    """The command line, with a cache of its own; gives the exit code and what was printed."""
    monkeypatch.setenv("FEDSOFIM_CACHE", str(tmp_path / "cache"))

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["fedsofim", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


def run(fedsofim, tmp_path, *overrides):
    """A short run; its exit code, what was printed, and its summary if there is one."""
    place = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
    code, printed = fedsofim("run", "rounds=10", f"output.dir={place}", *overrides)
    summary = place / "summary.json"
    return code, printed, json.loads(summary.read_text()) if summary.is_file() else None


@pytest.mark.parametrize("name", ["cifar10", "pathmnist"])
def test_real_sample_images_to_twenty_clients_and_ten_rounds(fedsofim, tmp_path, name):
    file = shared(f"images/{name}-sample.npz")
    code, printed, summary = run(
        fedsofim, tmp_path, f"dataset={name}", f"dataset.path={file}", "features.probes=0"
    )
    assert code == 0, printed
    assert "a second" in printed
    assert summary["clients"] == 20
    assert summary["accuracy"] > 0.35
    assert summary["epsilon"] <= 10


def test_generated_images_to_a_run_which_extracts_once(fedsofim, tmp_path):
    file = write_npz(tmp_path / "mine.npz", train=200)
    asked = ("dataset=npz", f"dataset.path={file}", "features.probes=4", "partition.clients=5")
    asked += ("output.counts=true", "settings=published")
    code, printed, first = run(fedsofim, tmp_path, *asked, "privacy=none")
    assert code == 0, printed
    assert first["accuracy"] == 1
    assert "images in" in printed
    code, printed, second = run(fedsofim, tmp_path, *asked, "privacy=none")
    assert "images in" not in printed
    assert second["loss"] == first["loss"]
    place = tmp_path / "run-0"
    assert (place / "partition.csv").read_text().startswith("client,records,class_0")
    assert (place / "partition.svg").is_file()


def test_natural_owners_of_images_become_clients(fedsofim, tmp_path):
    owner = np.array(["a", "b", "c"])[np.arange(60) % 3]
    file = write_npz(tmp_path / "mine.npz", train=60, train_client_id=owner)
    asked = ("dataset=npz", f"dataset.path={file}", "partition=natural", "features.probes=0")
    code, printed, summary = run(fedsofim, tmp_path, *asked)
    assert code == 0, printed
    assert summary["clients"] == 3


def test_vgg16_goes_the_whole_way(fedsofim, tmp_path):
    root = write_folder(tmp_path / "mine")
    asked = ("dataset=folder", f"dataset.root={root}", "backbone=vgg16", "backbone.weights=random")
    code, printed, _ = run(fedsofim, tmp_path, *asked, "features.probes=0", "partition.clients=2")
    assert code == 0, printed
    assert "1026 parameters" in printed  # 2 classes, 512 features and a bias


def test_vgg16_goes_the_whole_way_on_real_samples(fedsofim, tmp_path):
    with np.load(shared("images/cifar10-sample.npz")) as sample:
        few = {name: sample[name][: 200 if "train" in name else 50] for name in sample.files}
    np.savez(tmp_path / "few.npz", **few)
    asked = (f"dataset.path={tmp_path / 'few.npz'}", "backbone=vgg16", "backbone.weights=random")
    asked = (*asked, "features.probes=0")
    code, printed, summary = run(fedsofim, tmp_path, *asked)
    assert code == 0, printed
    assert "5130 parameters" in printed
    assert summary["loss"] < 3  # random convolutions tell little, and nothing diverges


def test_the_features_command_writes_a_file_that_a_run_takes(fedsofim, tmp_path):
    source = write_npz(tmp_path / "images" / "bloodmnist.npz")
    out = tmp_path / "blood.npz"
    asked = ("dataset=bloodmnist", f"dataset.root={source.parent}", "features.probes=2")
    code, printed = fedsofim("features", *asked, f"out={out}")
    assert code == 0, printed
    assert f"Features in {out}" in printed
    assert "60 images in" in printed
    asked = ("dataset=npz", f"dataset.path={out}", "partition.clients=3")
    assert run(fedsofim, tmp_path, *asked)[0] == 0
    code, printed = fedsofim("features", "dataset=bloodmnist", f"out={out}")
    assert (code, printed.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["dataset=bloodmnist"], "dataset.root: name the folder that holds bloodmnist.npz"),
        (["dataset=folder"], "dataset.root: name the folder that holds train"),
        (["backbone=vgg16", "backbone.weights=hub"], "place cifar100_vgg16_bn-7d8c4031.pt"),
        (["dataset=cifar10", "backbone.weights=no.pt"], "backbone.weights=no.pt: there is no such"),
        (["dataset=cifar10", "out=x.npz"], "has features already"),
        (["dataset=cifar10", "backbone=resnet50"], "resnet20, vgg16"),
        (["dataset=cifar10", "features.precision=int4"], "choose one of half, uint8"),
        (["dataset=cifar10", "features.batch=0"], "features.batch=0: must be at least 1"),
        (["out="], "out: name one file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(fedsofim, arguments, told):
    code, printed = fedsofim("features", *arguments)
    assert code == 2
    assert printed.count("\n") == 1
    assert told in printed


def test_help_is_there(fedsofim):
    code, printed = fedsofim("features", "--help")
    assert code == 0
    assert "usage: fedsofim features" in printed
    assert "features" in fedsofim("--help")[1]
