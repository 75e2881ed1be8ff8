"""Feature data sets: the embedded ones, a user's own, and those made from images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.shipped import shipped
from fedsofim.data import npz
from fedsofim.data.classes import Classes, in_order, known_names, names_in
from fedsofim.data.images import client_names, image_array, owners
from fedsofim.data.records import (
    Dataset,
    checked,
    count_classes,
    hold_out,
    probe_features,
    settled,
    split_of,
)

EMBEDDED = shipped("data/embedded")
CIFAR = ("cifar10", "cifar100")
MEDMNIST = (  # the 2D sets
    *("bloodmnist", "breastmnist", "chestmnist", "dermamnist", "octmnist", "organamnist"),
    *("organcmnist", "organsmnist", "pathmnist", "pneumoniamnist", "retinamnist", "tissuemnist"),
)
MEDMNIST_SIZES = (28, 64, 128, 224)
NAMES = (*CIFAR, *MEDMNIST, "folder", "npz", "hf", "arrays", "owners")


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
        classes: how many classes, or their names as a list; by default what the data name, or one
            more than the largest training label. Files that name their classes are read by name.
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
    classes: int | Sequence[str] | None = None
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
        if self.classes is not None:
            Classes.of(self.classes)
        sizes = MEDMNIST_SIZES if self.name in MEDMNIST else (28,)
        require(
            self.size in sizes,
            f"size={self.size}: choose one of {', '.join(map(str, sizes))}"
            + ("" if self.name in MEDMNIST else "; sizes are MedMNIST's"),
        )

    @property
    def agreed(self) -> Classes | None:
        """The classes that all who train together have agreed on, if that is said."""
        return None if self.classes is None else Classes.of(self.classes)

    @property
    def known(self) -> Classes | None:
        """The same, or what the makers of the set call its classes."""
        names = known_names(self.name, self.label) if self.path is None else ()
        return self.agreed or (Classes.of(names) if names else None)

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

    def of_images(self) -> bool:
        """Whether its records are images, which a network may take as they are."""
        return self.holds_images() if self.path else self.embedded is None

    def read(self) -> dict[str, Any]:
        """How its files are read: what of it is not the default."""
        told = {name: getattr(self, name) for name in ("classes", "as_rgb", "label")}
        return {name: value for name, value in told.items() if value}

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
        arrays = npz.read(file, mapped=True)
    except ConfigError:
        raise
    except Exception as error:  # a damaged archive can fail in any of its parts
        raise ConfigError(f"{file}: not a readable .npz file ({error})") from None
    with npz.naming(file):
        npz.check_seal(arrays)
        data = checked(arrays, _classes(config, arrays), tested=not config.holdout, lazy=True)
        sha256 = str(arrays[npz.SHA256]) if npz.SHA256 in arrays else npz.digest(arrays)
        ids = owners(arrays, "train", len(data.train_y))
        data = data._replace(sha256=sha256, client_id=ids, made=_made(npz.provenance(arrays)))
        return hold_out(data, config.holdout) if config.holdout else data


def _made(told: Mapping[str, Any]) -> str:
    """Where features were made, in words; nothing where the file does not say so."""
    device, arithmetic = told.get("device"), told.get("arithmetic", "single")
    known = device in ("cpu", "cuda", "mps") and arithmetic in ("single", "mixed")
    return f"{device}, in {arithmetic} precision" if known else ""


def _classes(config: DatasetConfig, arrays: Mapping[str, Array]) -> Classes | None:
    """Those that were agreed on, or that the file, or the set's makers, tell of."""
    told = npz.provenance(arrays).get("dataset", {}).get("classes")
    names = config.agreed or settled(names_in(arrays), None)
    if names is None and config.known and told in (None, config.known.count):
        names = config.known
    return names or (Classes.of(int(told)) if told else None)


class TestSet(NamedTuple):
    """What the server of a deployment scores a model on: its own records."""

    x: Array
    y: Array
    classes: Classes
    probe_x: Array | None = None


def load_test(config: DatasetConfig, file: Path) -> TestSet:
    """The test set alone, which is all that the server of a deployment reads."""
    require(file.is_file(), f"dataset.path={file}: there is no such file")
    arrays = npz.read(file)
    with npz.naming(file):
        x, y = split_of(arrays, "test")
        own = names_in(arrays)
        known = settled(own, _classes(config, arrays))
        y = in_order(y, own, known.names if known else ())
        count = count_classes(y, y, len(y), known)
        return TestSet(x, y, known or Classes(count), probe_features(arrays))
