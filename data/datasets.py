"""Feature data sets: the embedded ones, a user's own, and those made from images."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.rng import Purpose, stream
from fedsofim.core.shipped import shipped
from fedsofim.data import npz
from fedsofim.data.images import client_names, image_array, owners

EMBEDDED = shipped("data/embedded")
CIFAR = ("cifar10", "cifar100")
MEDMNIST = (  # the 2D sets
    *("bloodmnist", "breastmnist", "chestmnist", "dermamnist", "octmnist", "organamnist"),
    *("organcmnist", "organsmnist", "pathmnist", "pneumoniamnist", "retinamnist", "tissuemnist"),
)
MEDMNIST_SIZES = (28, 64, 128, 224)
NAMES = (*CIFAR, *MEDMNIST, "folder", "npz", "arrays", "owners")


class Dataset(NamedTuple):
    """Features and labels, split for training and test.

    Attributes:
        train_x: `(N, F)` float32.
        train_y: `(N,)` integers from 0 to `classes - 1`.
        test_x: `(M, F)` float32.
        test_y: `(M,)` integers.
        classes: how many classes there are, K; public.
        sha256: the content's hash.
        client_id: whose each training record is, `(N,)`, where the file says so.
        probe_x: the features of synthetic images through the same backbone, `(P, F)`, if known.
    """

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    classes: int
    sha256: str = ""
    client_id: Array | None = None
    probe_x: Array | None = None


ARRAYS = (
    "dataset=arrays: the records were given from Python and are not on disk; train with "
    "fedsofim.run(data=(X, y)), and continue with fedsofim.resume(DIR, data=(X, y))"
)
OWNERS = "dataset=owners: the data is with its owners; only a deployment can train on it"


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Which data to train on.

    Attributes:
        name: a data set's name; `npz` for a file of the user's, `folder` for a folder by class,
            `arrays` for records in memory, given from Python, and `owners` in a deployment whose
            server has no data, not even a test set.
        path: a `.npz` file of features or of images, instead of the set's own files.
        root: the folder that holds the set's image files.
        classes: how many classes; by default one more than the largest label.
        download: whether image files that are not in `root` may be fetched.
        size: the images' width and height, of MedMNIST's.
        as_rgb: whether grey images become colour ones with three equal channels.
        label: which of several labels is meant: a column's number, or `any` of them.
        holdout: the part of the training records that takes the test set's place, for choosing
            settings without looking at it.
    """

    name: str
    path: str | None = None
    root: str | None = None
    classes: int | None = None
    download: bool = False
    size: int = 28
    as_rgb: bool = False
    label: str | None = None
    holdout: float = 0.0

    def __post_init__(self) -> None:
        require(self.name in NAMES, f"name={self.name}: choose one of {', '.join(NAMES)}")
        require(0 <= self.holdout < 1, f"holdout={self.holdout}: must be at least 0 and below 1")
        require(
            self.name != "npz" or self.path is not None,
            "path: name a .npz file with train_x, train_y, test_x and test_y",
        )
        require(
            self.name != "owners" or self.classes is not None,
            "classes: say how many classes there are; the server has no data to count them in",
        )
        require(
            self.name != "folder" or self.root is not None,
            "root: name the folder that holds train/<class>/ and test/<class>/",
        )
        require(
            self.classes is None or self.classes >= 2,
            f"classes={self.classes}: at least two classes are needed",
        )
        sizes = MEDMNIST_SIZES if self.name in MEDMNIST else (28,)
        require(
            self.size in sizes,
            f"size={self.size}: choose one of {', '.join(map(str, sizes))}"
            + ("" if self.name in MEDMNIST else "; sizes are MedMNIST's"),
        )

    @property
    def embedded(self) -> Path | None:
        """The embedded features of this set, if its own files are not asked for."""
        return self.embedded_by("resnet20")

    def embedded_by(self, backbone: str) -> Path | None:
        """Those that a backbone with the project's own weights gave."""
        file = EMBEDDED / f"{self.name}-{backbone}.npz"
        own = self.path or self.root or self.download or self.size != 28
        return None if own or not file.is_file() else file

    @property
    def file(self) -> Path:
        """The file of features that the config itself names."""
        require(self.name != "owners", OWNERS)
        file = Path(self.path) if self.path else self.embedded
        if file is None:
            raise ConfigError(f"dataset={self.name}: its features are to be made from images")
        return file

    def holds_images(self) -> bool:
        """Whether `path` is a file of images, and not of features."""
        file = self.file
        require(file.is_file(), f"dataset.path={file}: there is no such file")
        headers = npz.headers(file)
        name = image_array(headers, "train")
        return name is not None and len(headers[name].shape) > 2

    def client_count(self) -> int:
        """How many clients the file's own column of record owners names."""
        require(self.path is not None, "partition=natural: needs dataset.path, a .npz file")
        file = self.file
        require(file.is_file(), f"dataset.path={file}: there is no such file")
        ids = next(iter(npz.read(file, *client_names("train")).values()), None)
        if ids is None:
            raise ConfigError(f"{file}: partition=natural needs an array train_client_id")
        return len(np.unique(ids))


def load(config: DatasetConfig, file: Path | None = None) -> Dataset:
    """Read and check a data set; every fault is an error that names the file.

    Args:
        config: which data.
        file: the features, where the config names images; by default the file it names.
    """
    file = file or config.file
    require(file.is_file(), f"dataset.path={file}: there is no such file")
    try:
        arrays = npz.read(file)
    except ConfigError:
        raise
    except Exception as error:  # a damaged archive can fail in any of its parts
        raise ConfigError(f"{file}: not a readable .npz file ({error})") from None
    with npz.naming(file):
        npz.check_seal(arrays)
        known = npz.provenance(arrays).get("dataset", {}).get("classes")
        data = checked(arrays, config.classes or known)
        sha256 = str(arrays[npz.SHA256]) if npz.SHA256 in arrays else npz.digest(arrays)
        ids = owners(arrays, "train", len(data.train_y))
        data = data._replace(sha256=sha256, client_id=ids)
        return hold_out(data, config.holdout) if config.holdout else data


class TestSet(NamedTuple):
    """What the server of a deployment scores a model on: its own records."""

    x: Array
    y: Array
    classes: int
    probe_x: Array | None = None


def load_test(config: DatasetConfig, file: Path) -> TestSet:
    """The test set alone, which is all that the server of a deployment reads."""
    require(file.is_file(), f"dataset.path={file}: there is no such file")
    arrays = npz.read(file)
    with npz.naming(file):
        x, y = split_of(arrays, "test")
        known = npz.provenance(arrays).get("dataset", {}).get("classes")
        classes = _count_classes(y, len(y), config.classes or known)
        return TestSet(x, y, classes, probe_features(arrays))


def hold_out(data: Dataset, share: float) -> Dataset:
    """The training records, of which a fixed random part takes the test set's place."""
    order = stream(0, Purpose.HOLDOUT).permutation(len(data.train_y))
    size = round(share * len(order))
    require(0 < size < len(order), f"dataset.holdout={share}: leaves a split without records")
    held, kept = np.sort(order[:size]), np.sort(order[size:])
    x, y, ids = data.train_x, data.train_y, data.client_id
    return data._replace(
        train_x=x[kept],
        train_y=y[kept],
        test_x=x[held],
        test_y=y[held],
        client_id=None if ids is None else ids[kept],
    )


def checked(arrays: Mapping[str, Array], classes: int | None) -> Dataset:
    """A data set of features from named arrays; every fault is an error."""
    train_x, train_y = split_of(arrays, "train")
    test_x, test_y = split_of(arrays, "test")
    require(
        train_x.shape[1] == test_x.shape[1],
        f"train has {train_x.shape[1]} features and test has {test_x.shape[1]}",
    )
    classes = _count_classes(np.concatenate([train_y, test_y]), len(train_y), classes)
    probes = probe_features(arrays)
    return Dataset(train_x, train_y, test_x, test_y, classes, probe_x=probes)


def probe_features(arrays: Mapping[str, Array]) -> Array | None:
    """The features of probes, `(P, F)` float32, if the file has any."""
    return features_of(arrays, "probe_x") if "probe_x" in arrays else None


def features_of(arrays: Mapping[str, Array], name: str) -> Array:
    """Features without labels, `(N, F)` float32, decoded where the file holds 8-bit codes."""
    require(arrays[name].dtype.kind in "iuf", f"{name}: holds {arrays[name].dtype}, not numbers")
    x = arrays[name].astype(np.float32)
    if "scale" in arrays:
        x = arrays["lo"].astype(np.float32) + arrays["scale"].astype(np.float32) * x
    require(x.ndim == 2 and len(x) > 0 and bool(np.isfinite(x).all()), f"{name}: not features")
    return x


def _count_classes(labels: Array, records: int, classes: int | None) -> int:
    largest = int(labels.max())
    if classes is None:
        require(largest < records, f"a label is {largest}, and there are {records} records")
        classes = largest + 1
    require(classes >= 2, "all labels are 0; at least two classes are needed")
    require(largest < classes, f"a label is {largest}, but there are {classes} classes")
    return classes


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
