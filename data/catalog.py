"""Where the images of a data set are: files already there or, where allowed, downloaded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.data.datasets import MEDMNIST, OWNERS, DatasetConfig
from fedsofim.data.download import Watch, download, silent
from fedsofim.data.hugging_face import HuggingFace
from fedsofim.data.images import (
    Batch,
    ImageSet,
    Reading,
    Split,
    by_name,
    folder_files,
    folder_images,
    npz_images,
)
from fedsofim.data.vision import optional, torchvision

# torchvision's class, and the folder that its archive unpacks to.
CIFAR_FILES = {
    "cifar10": ("CIFAR10", "cifar-10-batches-py"),
    "cifar100": ("CIFAR100", "cifar-100-python"),
}


class Source(NamedTuple):
    """Images that were found and not yet read.

    Attributes:
        files: all files whose content matters, in a fixed order.
        open: reads and checks labels and headers, and gives the images.
        licence: reads what the set's makers ask for.
        features: reads the records instead, where they are features already.
    """

    files: list[Path]
    open: Callable[[], ImageSet]
    licence: Callable[[], str]
    features: Callable[[], dict[str, Array]] | None = None


def locate(config: DatasetConfig, store: Path, watch: Watch = silent) -> Source:
    """Find a data set's images.

    Args:
        config: which data; its `root`, or `path`, says where.
        store: where downloads go when there is no `root`.
        watch: shown the progress of a download.
    """
    reading = Reading(classes=config.known, as_rgb=config.as_rgb, label=config.label)
    root = Path(config.root) if config.root else store / "images"
    if isinstance(config, HuggingFace):
        records = None if config.holds_images() else config.arrays
        return Source(config.files(), lambda: config.images(reading), _own, records)
    if config.path is not None:
        return _npz(config.file, reading, _own)
    require(config.root is None or root.is_dir(), f"dataset.root={root}: there is no such folder")
    if config.name == "folder":
        tree = folder_files(root, reading.classes.names if reading.classes else ())
        files = [f for classes in tree.values() for group in classes.values() for f in group]
        return Source(files, lambda: folder_images(root, reading), _own)
    require(config.name != "owners", OWNERS)
    find = _medmnist if config.name in MEDMNIST else _cifar
    return find(config, root, reading, watch)


def _own() -> str:
    return "the owner's"


def _npz(file: Path, reading: Reading, licence: Callable[[], str]) -> Source:
    return Source([file], lambda: npz_images(file, reading), licence)


def _medmnist(config: DatasetConfig, root: Path, reading: Reading, watch: Watch) -> Source:
    suffix = "" if config.size == 28 else f"_{config.size}"
    file = root / f"{config.name}{suffix}.npz"

    def info() -> Any:
        return optional("medmnist").INFO[config.name]

    if not file.is_file():
        _may_download(config, file.name, root)
        known = info()
        download(known[f"url{suffix}"], file, f"md5:{known[f'MD5{suffix}']}", watch)

    return Source(
        [file],
        lambda: npz_images(file, reading),
        lambda: f"{info()['license']} (MedMNIST, Yang et al. 2023)",
    )


def _cifar(config: DatasetConfig, root: Path, reading: Reading, watch: Watch) -> Source:
    packed = root / f"{config.name}.npz"
    if packed.is_file():
        return _npz(packed, reading, _cifar_licence)
    kind, base = CIFAR_FILES[config.name]
    folder = root / base
    if not folder.is_dir():
        _may_download(config, f"{base}/ or {packed.name}", root)
        known = getattr(torchvision("datasets"), kind)
        archive = download(known.url, root / known.filename, f"md5:{known.tgz_md5}", watch)
        torchvision("datasets.utils").extract_archive(str(archive), str(root))
    files = sorted(f for f in folder.iterdir() if f.is_file())
    return Source(files, lambda: _cifar_images(kind, root, folder, reading), _cifar_licence)


def _cifar_licence() -> str:
    return "none stated (Krizhevsky 2009)"


def _cifar_images(kind: str, root: Path, folder: Path, reading: Reading) -> ImageSet:
    dataset = getattr(torchvision("datasets"), kind)
    splits = {}
    for name in ("train", "test"):
        try:
            read = dataset(root, train=name == "train")
        except Exception as error:  # a damaged pickle can raise anything
            raise ConfigError(f"{folder}: incomplete or damaged ({error})") from None
        splits[name] = Split(np.array(read.targets, np.intp), _slices(read.data))
    return by_name(splits, read.classes, reading)


def _slices(images: Array) -> Callable[[int], Iterator[Batch]]:
    def batches(size: int) -> Iterator[Batch]:
        for start in range(0, len(images), size):
            yield images[start : start + size]

    return batches


def _may_download(config: DatasetConfig, wanted: str, root: Path) -> None:
    if config.download:
        return
    if config.root is None:
        raise ConfigError(
            f"dataset.root: name the folder that holds {wanted}, or allow dataset.download=true"
        )
    raise ConfigError(
        f"dataset.root={root}: has no {wanted}; place it there, or allow dataset.download=true"
    )
