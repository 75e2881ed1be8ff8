"""Images as they are, for models that are trained from pixels on."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from data.datasets import Dataset, read
from fedsofim.config import ConfigError, require
from fedsofim.linalg import Array

# Of CIFAR-100, a public set: statistics of the private images would have to be paid for.
MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def load_pixels(file: Path, classes: int | None = None) -> Dataset:
    """Read a `.npz` of uint8 images, NHWC or NHW, under MedMNIST's names or ours.

    Returns:
        A data set whose `x` are `(N, C, H, W)` float32, scaled and centred by public constants.
    """
    arrays = read(file)
    try:
        train_x, train_y = _split(arrays, "train")
        test_x, test_y = _split(arrays, "test")
        require(
            train_x.shape[1:] == test_x.shape[1:],
            f"train images are {train_x.shape[1:]} and test images {test_x.shape[1:]}",
        )
        largest = int(max(train_y.max(), test_y.max()))
        classes = classes or largest + 1
        require(classes >= 2, "all labels are 0; at least two classes are needed")
        require(largest < classes, f"a label is {largest}, but there are {classes} classes")
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    return Dataset(train_x, train_y, test_x, test_y, classes)


def holds_images(file: Path) -> bool:
    """Whether a file's training records are images, and not features."""
    arrays = read(file)
    return _named(arrays, "train_images", "train_x").ndim > 2


def normalise(images: Array) -> Array:
    """`(N, H, W, C)` or `(N, H, W)` uint8 images as `(N, C, H, W)` float32 network inputs."""
    x = images[..., None] if images.ndim == 3 else images
    x = np.ascontiguousarray(x.transpose(0, 3, 1, 2)).astype(np.float32) / 255
    colour = x.shape[1] == 3
    mean = np.array(MEAN if colour else 0.5, np.float32).reshape(-1, 1, 1)
    std = np.array(STD if colour else 0.25, np.float32).reshape(-1, 1, 1)
    return np.asarray((x - mean) / std)


def _split(arrays: Mapping[str, Array], split: str) -> tuple[Array, Array]:
    images = _named(arrays, f"{split}_images", f"{split}_x")
    require(
        images.ndim in (3, 4) and images.dtype == np.uint8 and images.size > 0,
        f"{split}_images is {images.dtype} {images.shape}; images are uint8 (N, H, W, C)",
    )
    y = _named(arrays, f"{split}_labels", f"{split}_y")
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    require(
        y.shape == (len(images),) and np.issubdtype(y.dtype, np.integer) and y.min() >= 0,
        f"{split}_labels is {y.dtype} {y.shape}; labels are {len(images)} whole numbers >= 0",
    )
    return normalise(images), y.astype(np.intp)


def _named(arrays: Mapping[str, Array], *names: str) -> Array:
    for name in names:
        if name in arrays:
            return arrays[name]
    raise ConfigError(f"no array {' or '.join(names)}; it holds {', '.join(arrays) or 'nothing'}")
