"""Feature data sets: the embedded ones, and a user's own `.npz` files."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsofim.config import ConfigError, require
from fedsofim.linalg import Array

EMBEDDED = Path(__file__).resolve().parent / "embedded"


class Dataset(NamedTuple):
    """Features and labels, split for training and test.

    Attributes:
        train_x: `(N, F)` float32.
        train_y: `(N,)` integers from 0 to `classes - 1`.
        test_x: `(M, F)` float32.
        test_y: `(M,)` integers.
        classes: how many classes there are, K; public.
        probe_x: the features of synthetic images through the same backbone, `(P, F)`, if known.
    """

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    classes: int
    probe_x: Array | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Which data to train on.

    Attributes:
        name: an embedded set, or `npz` for a file of the user's.
        path: the file, when `name` is `npz`.
        classes: how many classes; by default one more than the largest label.
    """

    name: str
    path: str | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        names = [*sorted(file.stem.split("-")[0] for file in EMBEDDED.glob("*.npz")), "npz"]
        require(self.name in names, f"name={self.name}: choose one of {', '.join(names)}")
        require(
            self.name != "npz" or self.path is not None,
            "path: name a .npz file with train_x, train_y, test_x and test_y",
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
    file = config.file
    arrays = read(file)
    try:
        return _dataset(arrays, config.classes)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def read(file: Path, key: str = "dataset.path") -> dict[str, Array]:
    """The arrays of a `.npz` file; `key` is the one that names it, for errors."""
    require(file.is_file(), f"{key}={file}: there is no such file")
    try:
        zipfile.ZipFile(file).close()  # np.load would take a lone .npy as well
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception as error:  # a damaged archive can fail in any of its parts
        raise ConfigError(f"{file}: not a readable .npz file ({error})") from None


def _dataset(arrays: Mapping[str, Array], classes: int | None) -> Dataset:
    train_x, train_y = _split(arrays, "train")
    test_x, test_y = _split(arrays, "test")
    require(
        train_x.shape[1] == test_x.shape[1],
        f"train has {train_x.shape[1]} features and test has {test_x.shape[1]}",
    )
    largest = int(max(train_y.max(), test_y.max()))
    if classes is None:
        require(
            largest < len(train_y), f"a label is {largest}, and there are {len(train_y)} records"
        )
        classes = largest + 1
    require(classes >= 2, "all labels are 0; at least two classes are needed")
    require(largest < classes, f"a label is {largest}, but there are {classes} classes")
    return Dataset(train_x, train_y, test_x, test_y, classes, probe_features(arrays))


def probe_features(arrays: Mapping[str, Array]) -> Array | None:
    """The features of probes, `(P, F)` float32, if the file has any."""
    if "probe_x" not in arrays:
        return None
    x = arrays["probe_x"].astype(np.float32)
    if "scale" in arrays:
        x = arrays["lo"].astype(np.float32) + arrays["scale"].astype(np.float32) * x
    require(x.ndim == 2 and len(x) > 0 and bool(np.isfinite(x).all()), "probe_x: not features")
    return x


def _split(arrays: Mapping[str, Array], split: str) -> tuple[Array, Array]:
    """Features and labels of one split, under our names or MedMNIST's."""
    x = _named(arrays, f"{split}_x", f"{split}_images")
    y = _named(arrays, f"{split}_y", f"{split}_labels")
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
