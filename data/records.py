"""An owner's own records: one file, checked once, then opened as a memory map.

A deployed client starts a process for every message, so the checked features are kept in the
client's own state directory in the form that the head works on.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data import npz
from data.datasets import split_of
from fedsofim import head
from fedsofim.config import require
from fedsofim.linalg import Array


class Records(NamedTuple):
    """Labelled records of one owner.

    Attributes:
        x: features with a last row of ones, `(F+1, N)`, a memory map.
        norm: the norm of each column, `(N,)`.
        y: labels, `(N,)`.
    """

    x: Array
    norm: Array
    y: Array

    @property
    def features(self) -> int:
        """How many features a record has."""
        return int(self.x.shape[0]) - 1

    def examples(self, classes: int) -> head.Examples:
        """The records, ready for a head with so many classes."""
        largest = int(self.y.max())
        require(largest < classes, f"a label is {largest}, but the model has {classes} classes")
        target = np.zeros((classes, len(self.y)), self.x.dtype)
        target[self.y, np.arange(len(self.y))] = 1
        return head.Examples(self.x, target, self.norm)


def open_records(file: Path, cache: Path) -> Records:
    """Open an owner's `.npz` file of `x` and `y`, or `train_x` and `train_y`.

    Args:
        file: the owner's file.
        cache: a directory of the owner's, where the checked features are kept; they are made
            again when the file has changed.
    """
    require(file.is_file(), f"{file}: there is no such data file")
    stat = file.stat()
    source = repr((str(file.resolve()), stat.st_size, stat.st_mtime_ns))
    place = cache / f"records-{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    if not place.is_dir():
        _make(file, cache, place)
    x, norm, y = (np.load(place / f"{name}.npy", mmap_mode="r") for name in Records._fields)
    return Records(x, norm, y)


def _make(file: Path, cache: Path, place: Path) -> None:
    x, y = _read(file)
    ready = head.examples(x, np.zeros(len(y), np.intp), 1)
    draft = cache / f".{place.name}.{os.getpid()}"
    draft.mkdir(parents=True, mode=0o700)
    for name, array in zip(Records._fields, (ready.x, ready.norm, y), strict=True):
        np.save(draft / f"{name}.npy", array)
    for old in cache.glob("records-*"):
        shutil.rmtree(old, ignore_errors=True)
    try:
        draft.rename(place)
    except OSError:  # another process was faster
        shutil.rmtree(draft, ignore_errors=True)


def _read(file: Path) -> tuple[Array, Array]:
    with npz.naming(file):
        return split_of(npz.read(file), "train", plain=True)
