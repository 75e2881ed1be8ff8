"""Feature data sets: the embedded ones, and a user's own `.npz` files."""

import importlib.metadata
import json
import urllib.parse
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from fedsofim.config import ConfigError, require
from fedsofim.linalg import Array


def editable_root() -> Path | None:
    """The project's own directory, if the package is installed from there in place."""
    try:
        told = importlib.metadata.distribution("fedsofim").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    origin = json.loads(told or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(urllib.parse.unquote(urllib.parse.urlparse(origin["url"]).path))


def _embedded() -> Path:
    """Where the embedded sets are: beside this file, or with the installed package.

    Flower's app bundle carries source files only, so under `flwr run` this module may be a copy
    that has no data beside it.
    """
    beside = Path(__file__).resolve().parent / "embedded"
    if beside.is_dir():
        return beside
    try:
        packages = Path(str(importlib.metadata.distribution("fedsofim").locate_file("")))
    except importlib.metadata.PackageNotFoundError:
        return beside
    return (editable_root() or packages) / "data" / "embedded"


EMBEDDED = _embedded()
T = TypeVar("T")


class Dataset(NamedTuple):
    """Features and labels, split for training and test.

    Attributes:
        train_x: `(N, F)` float32.
        train_y: `(N,)` integers from 0 to `classes - 1`.
        test_x: `(M, F)` float32.
        test_y: `(M,)` integers.
        classes: how many classes there are, K; public.
    """

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    classes: int


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Which data to train on.

    Attributes:
        name: an embedded set, `npz` for a file of the user's, or `owners` in a deployment whose
            server has no data of its own, not even a test set.
        path: the file, when `name` is `npz`; the server of a deployment reads only its test set.
        classes: how many classes; by default one more than the largest label.
    """

    name: str
    path: str | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        embedded = sorted(file.stem.split("-")[0] for file in EMBEDDED.glob("*.npz"))
        names = [*embedded, "npz", "owners"]
        require(self.name in names, f"name={self.name}: choose one of {', '.join(names)}")
        require(
            self.name != "npz" or self.path is not None,
            "path: name a .npz file with train_x, train_y, test_x and test_y",
        )
        require(
            self.name != "owners" or self.classes is not None,
            "classes: say how many classes there are; the server has no data to count them in",
        )
        require(
            self.classes is None or self.classes >= 2,
            f"classes={self.classes}: at least two classes are needed",
        )

    @property
    def file(self) -> Path:
        """The file that holds the data."""
        return Path(self.path) if self.path else next(EMBEDDED.glob(f"{self.name}-*.npz"))


def load(config: DatasetConfig) -> Dataset:
    """Read and check a data set; every fault is an error that names the file."""
    require(
        config.name != "owners",
        "dataset=owners: the data is with its owners; only a deployment can train on it",
    )
    return read_npz(config.file, lambda arrays: _dataset(arrays, config.classes))


class TestSet(NamedTuple):
    """What a server without training data can score a model on."""

    x: Array
    y: Array
    classes: int


def load_test(config: DatasetConfig) -> TestSet | None:
    """The test set alone, which is all that the server of a deployment reads; `None` without."""
    if config.name == "owners":
        return None

    def test(arrays: Mapping[str, Array]) -> TestSet:
        x, y = split_of(arrays, "test")
        return TestSet(x, y, _classes(y, len(y), config.classes))

    return read_npz(config.file, test)


def read_npz(file: Path, check: Callable[[Mapping[str, Array]], T]) -> T:
    """Read a `.npz` file and check it; every fault is an error that names the file."""
    require(file.is_file(), f"dataset.path={file}: there is no such file")
    try:
        arrays = _read(file)
    except Exception as error:  # a damaged archive can fail in any of its parts
        raise ConfigError(f"{file}: not a readable .npz file ({error})") from None
    try:
        return check(arrays)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _read(file: Path) -> dict[str, Array]:
    zipfile.ZipFile(file).close()  # np.load would take a lone .npy as well
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def _classes(labels: Array, records: int, classes: int | None) -> int:
    largest = int(labels.max())
    if classes is None:
        require(largest < records, f"a label is {largest}, and there are {records} records")
        classes = largest + 1
    require(classes >= 2, "all labels are 0; at least two classes are needed")
    require(largest < classes, f"a label is {largest}, but there are {classes} classes")
    return classes


def _dataset(arrays: Mapping[str, Array], classes: int | None) -> Dataset:
    train_x, train_y = split_of(arrays, "train")
    test_x, test_y = split_of(arrays, "test")
    require(
        train_x.shape[1] == test_x.shape[1],
        f"train has {train_x.shape[1]} features and test has {test_x.shape[1]}",
    )
    classes = _classes(np.concatenate([train_y, test_y]), len(train_y), classes)
    return Dataset(train_x, train_y, test_x, test_y, classes)


def split_of(
    arrays: Mapping[str, Array], split: str, *, plain: bool = False
) -> tuple[Array, Array]:
    """Checked features and labels of one split, under our names or MedMNIST's.

    With `plain`, also `x` and `y` alone, as in a file that has one split only.
    """
    x = _named(arrays, f"{split}_x", f"{split}_images", *(["x"] if plain else []))
    y = _named(arrays, f"{split}_y", f"{split}_labels", *(["y"] if plain else []))
    require(
        x.ndim == 2 and x.size > 0,
        f"{split}_x has shape {x.shape}; features are (records, features), not images",
    )
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    require(y.shape == x.shape[:1], f"{split}_y has shape {y.shape} for {len(x)} records")
    real = np.issubdtype(x.dtype, np.integer) or np.issubdtype(x.dtype, np.floating)
    require(real, f"{split}_x holds {x.dtype}, not real numbers")
    require(np.issubdtype(y.dtype, np.integer), f"{split}_y holds {y.dtype}, not whole numbers")
    require(int(y.min()) >= 0, f"{split}_y has the negative label {y.min()}")
    with np.errstate(over="ignore"):  # too large for float32 is infinite, which is refused below
        features = x.astype(np.float32)
    if "scale" in arrays:  # quantised: value = lo + scale * q, by column
        for name in ("scale", "lo"):
            column = _named(arrays, name)
            require(
                column.shape == x.shape[1:] and np.issubdtype(column.dtype, np.floating),
                f"{name} is {column.dtype} {column.shape}; it must hold a float for each feature",
            )
        features *= arrays["scale"].astype(np.float32)
        features += arrays["lo"].astype(np.float32)
    bad = int((~np.isfinite(features)).any(axis=1).sum())
    require(bad == 0, f"{split}_x has NaN or infinite features in {bad} records")
    return features, y.astype(np.intp)


def _named(arrays: Mapping[str, Array], *names: str) -> Array:
    for name in names:
        if name in arrays:
            return arrays[name]
    raise ConfigError(f"no array {' or '.join(names)}; it holds {', '.join(arrays) or 'nothing'}")
