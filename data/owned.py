"""An owner's own records: one file, checked once, then opened as a memory map.

A deployed client starts a process for every message, so the checked features are kept in the
client's own state directory in the form that the head works on.

Every fault of a file is found here, before a server asks for anything. Found later, a fault would
show in what the client answers, and so tell the server something about the records.
"""

import hashlib
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.files import locked, naming
from fedsofim.data import npz
from fedsofim.data.classes import Classes, in_order, names_in
from fedsofim.data.records import split_of
from fedsofim.models import head

ARRAYS = ("x", "norm", "y")


class Records(NamedTuple):
    """Labelled records of one owner.

    Attributes:
        x: features with a last row of ones, `(F+1, N)`, a memory map.
        norm: the norm of each column, `(N,)`.
        y: labels, `(N,)`.
        classes: those that there are, as the owner says.
        digest: of all features and labels, in their order, whatever file they come from.
    """

    x: Array
    norm: Array
    y: Array
    classes: Classes
    digest: str

    @property
    def features(self) -> int:
        """How many features a record has."""
        return int(self.x.shape[0]) - 1

    def examples(self) -> head.Examples:
        """The records, ready for a head."""
        target = np.zeros((self.classes.count, len(self.y)), self.x.dtype)
        target[self.y, np.arange(len(self.y))] = 1
        return head.Examples(self.x, target, self.norm)


def open_records(file: Path, cache: Path, classes: Classes) -> Records:
    """Open an owner's `.npz` file of `x` and `y`, or `train_x` and `train_y`.

    Args:
        file: the owner's file.
        cache: a directory of the owner's, where the checked features are kept; they are made
            again when the file has changed.
        classes: those that there are; no label may be beyond them. Where the file names its own,
            labels are read by name.
    """
    require(file.is_file(), f"{file}: there is no such data file")
    stat = file.stat()
    source = repr(
        (str(file.resolve()), stat.st_size, stat.st_mtime_ns, classes.count, classes.names)
    )
    place = cache / f"records-{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    if not place.is_dir():
        x, y = _read(file, classes)
        with locked(cache / "records.lock"):
            _make(x, y, cache, place)
    x, norm, y = (np.load(place / f"{name}.npy", mmap_mode="r") for name in ARRAYS)
    return Records(x, norm, y, classes, (place / "digest").read_text())


def _make(x: Array, y: Array, cache: Path, place: Path) -> None:
    """Write the records, unless another process has done so already, and remove older copies."""
    if place.is_dir():
        return
    for old in (*cache.glob("records-*"), *cache.glob(".records-*")):
        shutil.rmtree(old, ignore_errors=True)
    ready = head.examples(x, np.zeros(len(y), np.intp), 1)
    draft = cache / f".{place.name}"
    with naming(draft):
        draft.mkdir(mode=0o700)
        for name, array in zip(ARRAYS, (ready.x, ready.norm, y), strict=True):
            np.save(draft / f"{name}.npy", array)
        (draft / "digest").write_text(npz.digest({"x": ready.x, "y": y.astype(np.int64)}))
    draft.rename(place)


def _read(file: Path, classes: Classes) -> tuple[Array, Array]:
    with npz.naming(file):
        arrays = npz.read(file)
        own = names_in(arrays)
        require(
            bool(classes.names) or not own,  # which classes a file has may tell of its records
            f"names its classes: {', '.join(own)}; declare those that all owners agreed on, which "
            "the server is told, as --classes a,b,c or --classes FILE",
        )
        x, y = split_of(arrays, "train", plain=True)
        largest = int(y.max())
        most = len(own) or classes.count
        require(largest < most, f"a label is {largest}, but there are {most} classes")
        return x, in_order(y, own, classes.names)
