"""Images as they are, for models that are trained from pixels on."""

from pathlib import Path

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.data import npz
from fedsofim.data.catalog import locate
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.images import Split
from fedsofim.data.recipe import Preprocessing
from fedsofim.data.records import Dataset, hold_out

BATCH = 1024


def load_pixels(config: DatasetConfig, store: Path) -> Dataset:
    """Read a set of images of one size, whole.

    Args:
        config: which data.
        store: where downloads are kept.

    Returns:
        A data set whose `x` are `(N, 3, H, W)` float32, scaled and centred by public constants:
        statistics of the private images would have to be paid for.
    """
    images = locate(config, store).open()
    train, test = images.splits["train"], images.splits.get("test")
    require(
        test is not None or bool(config.holdout),
        f"dataset={config.name}: has no test images; dataset.holdout=0.2 holds training ones out",
    )
    train_x = _pixels(train, "train")
    test_x = _pixels(test, "test") if test else train_x[:0]
    test_y = test.labels if test else train.labels[:0]
    require(
        train_x.shape[1:] == test_x.shape[1:],
        f"train images are {train_x.shape[2:]} and test images {test_x.shape[2:]}",
    )
    data = Dataset(train_x, train.labels, test_x, test_y, images.classes.count)
    sha256 = npz.digest({k: v for k, v in data._asdict().items() if isinstance(v, np.ndarray)})
    data = data._replace(sha256=sha256, client_id=train.client_id, names=images.classes.names)
    return hold_out(data, config.holdout) if config.holdout else data


def normalise(images: Array) -> Array:
    """`(N, H, W, 3)` uint8 images as `(N, 3, H, W)` float32 network inputs."""
    how = Preprocessing()
    mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in (how.mean, how.std))
    x = images.transpose(0, 3, 1, 2).astype(np.float32) / 255
    return np.ascontiguousarray((x - mean) / std)


def _pixels(split: Split, name: str) -> Array:
    parts: list[Array] = []
    for batch in split.batches(BATCH):
        shapes = {image.shape for image in batch}
        require(
            len(shapes) == 1 and (not parts or parts[0].shape[2:] == next(iter(shapes))[:2]),
            f"{name}: images differ in size; a network from pixels on takes one size",
        )
        parts.append(normalise(np.asarray(batch)))
    return np.concatenate(parts)
