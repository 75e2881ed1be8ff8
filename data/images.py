"""Labelled images, read in batches: from a `.npz` in MedMNIST's layout or a folder by class.

Only one batch is in memory at a time, so a file may be of any size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.data import npz
from fedsofim.data.classes import NAMES, Classes, checked_names, in_order, names_in
from fedsofim.data.vision import optional

SPLITS = ("train", "val", "test")
# A batch of images, each `(H, W, 3)` uint8; one array where all have the same size.
Batch = Array | Sequence[Array]


class Split(NamedTuple):
    """The images of one split, in a fixed order.

    Attributes:
        labels: `(N,)` integers.
        batches: at most so many images at a time; every call starts from the first.
        client_id: whose each record is, `(N,)`, where the source says so.
    """

    labels: Array
    batches: Callable[[int], Iterator[Batch]]
    client_id: Array | None = None


class ImageSet(NamedTuple):
    """Images in splits, of which `train` is always there, and what their labels number."""

    splits: Mapping[str, Split]
    classes: Classes


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read.

    Attributes:
        classes: those that were agreed on; by default what the files name, or the training labels
            show.
        as_rgb: whether a grey image becomes a colour one with three equal channels.
        label: which label of several is meant: a column's number, or `any` of them.
    """

    classes: Classes | None = None
    as_rgb: bool = False
    label: str | None = None

    def colour(self, images: Array, what: str) -> Array:
        """Colour images `(..., H, W, 3)` from colour or grey `(..., H, W[, 1])` ones."""
        if images.shape[-1] == 3:
            return images
        require(
            self.as_rgb,
            f"{what}: grey images, and the backbone takes colour; "
            "dataset.as_rgb=true repeats the grey channel",
        )
        grey = images if images.shape[-1] == 1 else images[..., None]
        return np.broadcast_to(grey, (*grey.shape[:-1], 3))

    def labels(self, y: Array, what: str) -> Array:
        """One label for each record, `(N,)`, from `(N,)` or `(N, L)`."""
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        require(np.issubdtype(y.dtype, np.integer), f"{what} holds {y.dtype}, not whole numbers")
        if y.ndim == 2:
            choices = ["any", *map(str, range(y.shape[1]))]
            require(
                self.label in choices,
                f"{what} has {y.shape[1]} labels for each record; dataset.label=any tells records "
                "with any of them from those with none, a number tells by that one",
            )
            y = (y != 0).any(axis=1) if self.label == "any" else y[:, int(str(self.label))]
        require(y.ndim == 1, f"{what} has shape {y.shape}; one label for each record is needed")
        return y.astype(np.intp)

    def count(self, labels: Mapping[str, Array]) -> Classes:
        """What classes there are, after a check of all labels."""
        classes = self.classes or Classes(int(labels["train"].max()) + 1)
        for split, y in labels.items():
            bad = np.flatnonzero((y < 0) | (y >= classes.count))
            require(
                bad.size == 0,
                f"{split} has the label {y[bad[0]] if bad.size else 0} at record "
                f"{bad[0] if bad.size else 0}; labels are 0 to {classes.count - 1}",
            )
        require(classes.count >= 2, "all labels are 0; at least two classes are needed")
        return classes


def npz_images(file: Path, reading: Reading) -> ImageSet:
    """The images of a `.npz` file: `train_images`, `train_labels`, `test_images` and so on."""
    with npz.naming(file):
        headers = npz.headers(file)
        splits = {}
        for split in SPLITS:
            if split != "train" and image_array(headers, split) is None:
                continue
            splits[split] = _npz_split(file, headers, split, reading)
        return by_name(splits, names_in(npz.read(file, NAMES)), reading)


def by_name(splits: Mapping[str, Split], own: Sequence[str], reading: Reading) -> ImageSet:
    """Splits whose labels number the names `own`, if any, as the classes that were agreed on."""
    agreed = reading.classes.names if reading.classes else ()
    if own and not agreed:
        found = Classes.of(own)
        if reading.classes is not None:
            reading.classes.require_same(found, "the data", "dataset.classes")
        reading, agreed = replace(reading, classes=found), found.names
    named = {k: s._replace(labels=in_order(s.labels, own, agreed)) for k, s in splits.items()}
    return ImageSet(named, reading.count({k: s.labels for k, s in named.items()}))


def image_array(headers: Mapping[str, npz.Header], split: str) -> str | None:
    """The name of a split's array of images or features, ours or MedMNIST's."""
    return next((n for n in (f"{split}_images", f"{split}_x") if n in headers), None)


def _npz_split(
    file: Path, headers: Mapping[str, npz.Header], split: str, reading: Reading
) -> Split:
    name = image_array(headers, split)
    held = ", ".join(headers) or "nothing"
    if name is None:
        raise ConfigError(f"no array {split}_images; it holds {held}")
    shape, dtype, _ = headers[name]
    require(dtype == np.uint8, f"{name} holds {dtype}; images are 8-bit (uint8), 0 to 255")
    require(
        len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3)),
        f"{name} has shape {shape}; images are (N, H, W), (N, H, W, 1) or (N, H, W, 3)",
    )
    require(0 not in shape, f"{name} is empty, of shape {shape}")
    grey = len(shape) == 3 or shape[3] == 1
    if grey:
        reading.colour(np.empty((1, 1, 1, 1), np.uint8), name)
    arrays = npz.read(file, f"{split}_labels", f"{split}_y", *client_names(split))
    label_name = next((n for n in (f"{split}_labels", f"{split}_y") if n in arrays), None)
    if label_name is None:
        raise ConfigError(f"no array {split}_labels; it holds {held}")
    labels = reading.labels(arrays[label_name], label_name)
    require(len(labels) == shape[0], f"{label_name} has {len(labels)} labels for {shape[0]} images")

    def batches(size: int) -> Iterator[Batch]:
        for batch in npz.rows(file, name, size):
            yield reading.colour(batch[..., None] if batch.ndim == 3 else batch, name)

    return Split(labels, batches, owners(arrays, split, len(labels)))


def client_names(split: str) -> tuple[str, ...]:
    """What a column of record owners may be called."""
    return (f"{split}_client_id", "client_id") if split == "train" else (f"{split}_client_id",)


def owners(arrays: Mapping[str, Array], split: str, records: int) -> Array | None:
    """Whose each record of a split is, where the file says so."""
    name = next((n for n in client_names(split) if n in arrays), None)
    if name is None:
        return None
    ids = arrays[name]
    require(ids.shape == (records,), f"{name} has shape {ids.shape} for {records} records")
    require(ids.dtype.kind in "iuU", f"{name} holds {ids.dtype}; owners are numbers or texts")
    return ids


def folder_files(root: Path, names: Sequence[str] = ()) -> dict[str, dict[str, list[Path]]]:
    """The files of `root/<split>/<class>/...`, sorted; hidden files are left out.

    Args:
        root: holds `train` and, if there are such records, `val` and `test`.
        names: the classes that were agreed on; then a class may be without files here.
    """
    tree: dict[str, dict[str, list[Path]]] = {}
    for split in SPLITS:
        folder = root / split
        if split != "train" and not folder.is_dir():
            continue
        require(
            folder.is_dir(),
            f"{folder}: there is no such folder; images go in "
            f"{root.name}/train/<class>/ and {root.name}/test/<class>/",
        )
        classes = sorted(d for d in folder.iterdir() if d.is_dir() and d.name[0] != ".")
        require(bool(classes), f"{folder}: has no class folders")
        tree[split] = {d.name: _images_below(d) for d in classes}
        for d in classes:
            require(
                bool(names or tree[split][d.name]),
                f"{d}: a class folder with no files; if that is right, name all classes with "
                "dataset.classes=[...]",
            )
    return tree


def _images_below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name[0] != ".")


def folder_images(root: Path, reading: Reading) -> ImageSet:
    """The images of a folder, `root/train/<class>/*` and `root/test/<class>/*`.

    Classes are numbered as was agreed on, else in the order of their names in `train`.
    """
    agreed = reading.classes.names if reading.classes else ()
    tree = folder_files(root, agreed)
    names = agreed or checked_names(list(tree["train"]))
    where = "the agreed classes" if agreed else f"{root / 'train'}"
    splits = {}
    for split, classes in tree.items():
        for name in classes:
            told = f"{root / split / name}: no such class in {where}, which are {', '.join(names)}"
            require(name in names, told)
        files = [file for group in classes.values() for file in group]
        require(bool(files), f"{root / split}: has no images")
        numbers = [names.index(name) for name in classes]
        labels = np.repeat(numbers, [len(g) for g in classes.values()])
        splits[split] = Split(labels, _decoder(files, reading))
    return by_name(splits, names, reading)


def _decoder(files: Sequence[Path], reading: Reading) -> Callable[[int], Iterator[Batch]]:
    def batches(size: int) -> Iterator[Batch]:
        for start in range(0, len(files), size):
            yield [decode(file, reading) for file in files[start : start + size]]

    return batches


def decode(file: Path | BytesIO, reading: Reading, what: str | None = None) -> Array:
    """One image file, or its content, `(H, W, 3)`; `what` is what messages call it."""
    image, what = optional("PIL.Image"), what or str(file)
    try:
        with image.open(file) as opened:
            mode = opened.mode
            grey = mode in ("1", "L", "LA")
            require(not mode.startswith(("I", "F")), f"{mode} pixels; only 8-bit images are read")
            pixels = np.asarray(opened.convert("L" if grey else "RGB"))
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    except (OSError, ValueError, SyntaxError, EOFError, image.DecompressionBombError) as error:
        told = str(error) if isinstance(file, Path) else type(error).__name__
        raise ConfigError(f"{what}: a broken image ({told})") from None
    return reading.colour(pixels[..., None] if grey else pixels, what)
