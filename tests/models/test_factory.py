"""A user's own module is tried before anything is written; what is wrong with it is one line."""

import numpy as np
import pytest
from refusal import assert_refused

torch = pytest.importorskip("torch")
MODULE = """
from torch import nn
def ok(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
def no_arguments():
    return ok((3, 4, 4), 3)
def too_small(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))
def too_many(shape, classes):
    return ok(shape, classes + 2)
def fails(shape, classes):
    raise KeyError("a bug of mine")
class Pair(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.inner = ok(shape, classes)
    def forward(self, x):
        return self.inner(x), x
def number(shape, classes):
    return classes
"""


@pytest.fixture
def run(cli, tmp_path):
    """Train a module of `mynet.py` in the current folder on small images."""
    rng, y = np.random.default_rng(0), np.arange(90) % 3
    x = (60 * y[:, None, None, None] + rng.integers(0, 60, (90, 4, 4, 3))).astype(np.uint8)
    splits = {"train": slice(0, 60), "test": slice(60, 90)}
    arrays = {f"{k}_images": x[s] for k, s in splits.items()}
    np.savez(tmp_path / "x.npz", **arrays, **{f"{k}_labels": y[s] for k, s in splits.items()})
    (tmp_path / "mynet.py").write_text(MODULE)
    few = ["partition=iid", "partition.clients=2", "rounds=2", "features.cache=cache"]
    given = ["dataset=npz", "dataset.path=x.npz", "model=module", *few]
    return lambda name: cli("run", *given, f"model.factory=mynet:{name}", "output.dir=mine")


def test_a_module_of_the_current_folder_is_found(run, tmp_path):
    done = run("ok")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "mine" / "card.md").is_file()
    assert not (tmp_path / "cache").exists()  # from pixels on, no features are extracted


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_arguments", ["called with the shape (3, 4, 4) and 3 classes", "TypeError"]),
        ("fails", ["KeyError: 'a bug of mine'"]),
        ("too_small", ["its module failed on 2 records of shape (3, 4, 4)", "RuntimeError"]),
        ("too_many", ["for 2 records its module gives (2, 5); it must give logits (2, 3)"]),
        ("Pair", ["gives tuple; it must give logits (2, 3)"]),
        ("number", ["gave no torch module"]),
        ("oks", ["mynet has no oks; did you mean ok?"]),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(run, tmp_path, name, words):
    assert_refused(run(name), f"model.factory=mynet:{name}: ", *words)
    assert not (tmp_path / "mine").exists()
