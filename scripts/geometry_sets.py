"""Make the sets of features that `settings=auto` is measured on: docs/geometry.md.

    fedsofim features dataset=pneumoniamnist dataset.root=IMAGES out=SETS/xrays.npz
    fedsofim features dataset=cifar100 dataset.root=IMAGES out=SETS/cifar100.npz
    python scripts/geometry_sets.py SETS

Most are cut from the embedded features and from CIFAR-100's: some classes, renumbered, of which
the first so many training records are taken, and all test records.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.data.datasets import DatasetConfig, load
from fedsofim.data.records import Dataset

CATS_AND_DOGS = (3, 5)


def features(path: Path) -> Dataset:
    """A file of features."""
    return load(DatasetConfig(name="npz", path=path))


def chosen(x: Array, y: Array, classes: Sequence[int], most: int | None) -> tuple[Array, Array]:
    """The first records of these classes, which become 0, 1, ..."""
    rows = np.flatnonzero(np.isin(y, classes))[:most]
    return np.asarray(x[rows]), np.searchsorted(classes, y[rows])


def cut(data: Dataset, out: Path, classes: Sequence[int], most: int | None = None) -> None:
    """Write the part of a set that has these classes."""
    train = chosen(data.train_x, data.train_y, classes, most)
    test = chosen(data.test_x, data.test_y, classes, None)
    write(out, train, test)


def write(out: Path, train: tuple[Array, Array], test: tuple[Array, Array]) -> None:
    """Write features and labels."""
    np.savez(out, train_x=train[0], train_y=train[1], test_x=test[0], test_y=test[1])


def main(folder: Path) -> None:
    """Make all of them."""
    cifar10, pathmnist = (load(DatasetConfig(name=name)) for name in ("cifar10", "pathmnist"))
    cifar100 = features(folder / "cifar100.npz")
    cut(cifar10, folder / "cats-dogs.npz", CATS_AND_DOGS)
    cut(cifar10, folder / "cats-dogs-2000.npz", CATS_AND_DOGS, 2000)
    cut(pathmnist, folder / "tissue-2.npz", (5, 8))
    cut(pathmnist, folder / "tissue-3.npz", (5, 7, 8), 1500)
    cut(cifar100, folder / "cifar100-20.npz", range(20))
    x, y = cifar100.test_x, cifar100.test_y
    write(folder / "cifar100-test.npz", (x[:8000], y[:8000]), (x[8000:], y[8000:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
