"""A backbone's training learns, can be interrupted at any step, and ends the same."""

import importlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from image_sets import write_npz

from fedsofim.core.errors import ConfigError
from fedsofim.data.backbones import load_backbone

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "pretrain_backbone.py"


@pytest.fixture(scope="module")
def pretrain():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        return importlib.import_module("pretrain_backbone")


@pytest.fixture
def training(pretrain, tmp_path):
    images, _, classes = pretrain.open_images(write_npz(tmp_path / "set.npz", train=24, size=32))

    def make(backbone="resnet20", epochs=2, **more):
        recipe = pretrain.Recipe(backbone=backbone, epochs=epochs, batch=8, lr=0.05, **more)
        return pretrain.Training(recipe, classes, images)

    return make


def test_the_learning_rate_is_the_recipes_cycle(pretrain):
    recipe = pretrain.Recipe(backbone="resnet20")
    rates = [recipe.lr_at(s) for s in (0, 0.1, 0.2, 0.6, 1)]
    np.testing.assert_allclose(rates, [0.025, 0.1375, 0.25, 0.1250125, 0.000025])


def test_augmentation_shifts_and_flips_whole_images(pretrain):
    x = torch.arange(1, 3 * 8 * 8 + 1, dtype=torch.int64).reshape(1, 3, 8, 8).repeat(200, 1, 1, 1)
    torch.manual_seed(0)
    out = pretrain.augment(x, 2)
    padded = torch.nn.functional.pad(x[0], (2, 2, 2, 2))
    crops = [padded[:, i : i + 8, j : j + 8] for i in range(5) for j in range(5)]
    views = crops + [c.flip(2) for c in crops]
    found = [next(i for i, v in enumerate(views) if torch.equal(v, image)) for image in out]
    assert len(set(found)) > 40  # nearly all of the 50 views appear, and nothing else


@pytest.mark.parametrize("backbone", ["resnet20", "vgg16"])
def test_a_resumed_training_ends_with_the_same_weights(training, tmp_path, backbone):
    through = training(backbone, epochs=1)
    losses = [through.advance() for _ in range(through.steps)]
    before = training(backbone, epochs=1)
    again = [before.advance()]
    torch.save(before.state(), tmp_path / "saved")
    after = training(backbone, epochs=1)
    after.restore(torch.load(tmp_path / "saved", weights_only=True), tmp_path / "saved")
    again += [after.advance() for _ in range(after.steps - 1)]
    assert again == losses
    for name, value in through.network.state_dict().items():
        assert torch.equal(after.network.state_dict()[name], value), name


def test_training_learns_and_its_weights_load(pretrain, training, tmp_path):
    learner = training(epochs=6)
    losses = [learner.advance() for _ in range(learner.steps)]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    pretrain.save(learner.network.state_dict(), tmp_path / "weights.pt")
    again = load_backbone("resnet20", tmp_path / "weights.pt")
    assert torch.equal(again.fc.bias, learner.network.fc.bias)
    second = training(start=str(tmp_path / "weights.pt"))
    assert torch.equal(second.network.fc.bias, learner.network.fc.bias)


def test_another_recipe_is_not_resumed(training, tmp_path):
    state = training(epochs=2).state()
    with pytest.raises(ConfigError, match="other settings"):
        training(epochs=3).restore(state, tmp_path)


@pytest.mark.slow
def test_ctrl_c_saves_and_resume_finishes(tmp_path):
    images = write_npz(tmp_path / "set.npz", train=320, size=32)
    out = tmp_path / "weights.pt"
    command = [sys.executable, SCRIPT, "resnet20", "--images", images, "--out", out]
    command += ["--epochs", "3", "--batch", "16", "--lr", "0.05"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert "epoch 1 of 3" in process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert "--resume goes on" in process.communicate()[0]
    assert process.returncode == 130
    assert not out.exists()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "was begun already" in again.stderr
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.is_file()
