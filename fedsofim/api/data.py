"""Records that a program holds in memory."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from fedsofim.config.auto import Sizes
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.data import npz
from fedsofim.data.records import Dataset, hold_out
from fedsofim.models.coded import Rows, blocks, is_large


class Labelled(NamedTuple):
    """A data set whose labels are numbers from 0, and what they stand for, `(K,)`."""

    dataset: Dataset
    classes: Array

    @property
    def sizes(self) -> Sizes:
        """What is public of them."""
        shape = self.dataset.train_x.shape
        features, classes = math.prod(shape[1:]), len(self.classes)
        return Sizes(records=shape[0], features=features, classes=classes)

    def held_out(self, share: float) -> "Labelled":
        """The training records, of which a part takes the test set's place."""
        return self._replace(dataset=hold_out(self.dataset, share)) if share else self


def labelled(data: Sequence[Any], owners: Any = None, classes: Any = None) -> Labelled:
    """Check arrays, and number their labels.

    Args:
        data: `(X, y)` or `(X, y, X_test, y_test)`; `X` is `(N, F)` features, or `(N, C, H, W)` for
            a network; labels are whole numbers, texts or truth values.
        owners: whose each training record is, `(N,)`, if the division is given.
        classes: all labels that there can be, sorted; by default those of the training records.

    >>> labelled((np.eye(4), ["no", "yes", "no", "yes"])).dataset.train_y.tolist()
    [0, 1, 0, 1]
    """
    require(
        not isinstance(data, np.ndarray) and len(data) in (2, 4),
        "data: give (X, y), or (X, y, X_test, y_test)",
    )
    x, y = _inputs(data[0], "X"), _labels(data[1], "y")
    none = len(data) == 2
    test_x = np.asarray(x[:0]) if none else _inputs(data[2], "X_test")
    test_y = y[:0] if none else _labels(data[3], "y_test")
    for name, inputs, labels in (("X", x, y), ("X_test", test_x, test_y)):
        require(len(inputs) == len(labels), f"{name}: {len(inputs)} records, {len(labels)} labels")
    require(len(x) > 0, "X: there are no records")
    require(
        test_x.shape[1:] == x.shape[1:],
        f"X_test: records have shape {test_x.shape[1:]}, those of X {x.shape[1:]}",
    )
    require(y.dtype.kind == test_y.dtype.kind, f"y_test: holds {test_y.dtype}, y holds {y.dtype}")
    names = np.unique(y) if classes is None else np.asarray(classes)
    require(len(names) >= 2, f"y: all labels are {names[0]}; at least two classes are needed")
    ids = None if owners is None else np.asarray(owners)
    require(ids is None or ids.shape == y.shape, f"owners: must have shape {y.shape}")
    dataset = Dataset(
        x,
        _numbered(y, names, "y"),
        test_x,
        _numbered(test_y, names, "y_test"),
        len(names),
        client_id=ids,
    )
    dataset = dataset._replace(sha256=_digest(dataset))
    return Labelled(dataset, names)


def _inputs(given: Any, name: str) -> Array:
    try:
        x = np.asarray(given)
        if x.ndim == 2 and x.dtype.kind in "iuf" and is_large(x):
            x = cast(Array, Rows(x))  # as it is: floats when they are asked for
        else:
            with np.errstate(over="ignore"):  # too large for float32 is infinite, and refused
                x = x.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: not an array of numbers ({error})") from None
    require(
        x.ndim in (2, 4),
        f"{name}: has shape {x.shape}; give (records, features), or (records, channels, height, "
        "width) for a network",
    )
    parts, axes = (np.asarray(x[part]) for part in blocks(len(x))), tuple(range(1, x.ndim))
    bad = sum(int((~np.isfinite(part)).any(axis=axes).sum()) for part in parts)
    require(bad == 0, f"{name}: NaN or infinite values in {bad} records")
    return x


def _labels(given: Any, name: str) -> Array:
    y = np.asarray(given)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    require(y.ndim == 1, f"{name}: has shape {y.shape}; labels are (records,)")
    if y.dtype == object and all(isinstance(label, str) for label in y):
        y = y.astype(str)  # as pandas keeps texts
    if y.dtype.kind == "f" and bool((y == np.round(y)).all()):
        y = y.astype(np.int64)
    y = y.astype(np.int64) if y.dtype.kind == "u" else y
    require(y.dtype.kind in "ibU", f"{name}: holds {y.dtype}; give whole numbers or texts")
    return y


def _numbered(labels: Array, names: Array, what: str) -> Array:
    places = np.searchsorted(names, labels).clip(max=len(names) - 1)
    wrong = np.flatnonzero(names[places] != labels)
    require(wrong.size == 0, f"{what}: {labels[wrong[:1]]} is not among the classes {names}")
    return np.asarray(places.astype(np.intp))


def _digest(data: Dataset) -> str:
    named = {"x": data.train_x, "y": data.train_y, "test_x": data.test_x, "test_y": data.test_y}
    if data.client_id is not None:
        named["client_id"] = data.client_id
    return npz.digest(named)
