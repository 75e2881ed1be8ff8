"""Records out of named arrays: features and labels in splits, checked."""

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.rng import Purpose, stream
from fedsofim.data.classes import Classes, in_order, names_in
from fedsofim.models.coded import Rows, blocks, is_large


class Dataset(NamedTuple):
    """Features and labels, split for training and test.

    Attributes:
        train_x: `(N, F)` float32; or, if large, what becomes that in parts: `models/coded.py`.
        train_y: `(N,)` integers from 0 to `classes - 1`; where features are large, small ones.
        test_x: `(M, F)` float32.
        test_y: `(M,)` integers.
        classes: how many classes there are, K; public.
        sha256: the content's hash.
        client_id: whose each training record is, `(N,)`, where the file says so.
        probe_x: the features of synthetic images through the same backbone, `(P, F)`, if known.
        names: what the classes are called, K of them, if that is known; public.
        made: where features were made, and in which arithmetic, if the file says so.
    """

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    classes: int
    sha256: str = ""
    client_id: Array | None = None
    probe_x: Array | None = None
    names: tuple[str, ...] = ()
    made: str = ""


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


def checked(
    arrays: Mapping[str, Array],
    classes: Classes | None = None,
    *,
    tested: bool = True,
    lazy: bool = False,
) -> Dataset:
    """A data set of features from named arrays; every fault is an error.

    Args:
        arrays: `train_x`, `train_y` and so on; see `split_of`.
        classes: those that were agreed on; by default what the arrays name, or the training labels
            show.
        tested: whether there must be a test set.
        lazy: whether features that are large may stay as they are, and be floats when asked for.
    """
    train_x, train_y = split_of(arrays, "train", lazy=lazy)
    absent = not tested and not {"test_x", "test_images"} & arrays.keys()
    none = np.asarray(train_x[:0]), train_y[:0]
    test_x, test_y = none if absent else split_of(arrays, "test", lazy=lazy)
    require(
        train_x.shape[1] == test_x.shape[1],
        f"train has {train_x.shape[1]} features and test has {test_x.shape[1]}",
    )
    own = names_in(arrays)
    known = settled(own, classes)
    agreed = known.names if known else ()
    train_y, test_y = (in_order(y, own, agreed) for y in (train_y, test_y))
    count = count_classes(train_y, test_y, len(train_y), known)
    probes = probe_features(arrays)
    return Dataset(train_x, train_y, test_x, test_y, count, probe_x=probes, names=agreed)


def settled(own: tuple[str, ...], agreed: Classes | None) -> Classes | None:
    """The classes of a file that names its own, where others may have been agreed on."""
    if agreed is not None and (agreed.names or not own):
        return agreed
    if agreed is not None:
        agreed.require_same(Classes.of(own), "the file", "dataset.classes")
    return Classes.of(own) if own else None


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


def count_classes(train: Array, test: Array, records: int, classes: Classes | None) -> int:
    """How many classes there are; a test label that no training record may have is an error."""
    largest = int(train.max())
    if classes is None:
        require(largest < records, f"a label is {largest}, and there are {records} records")
    count = largest + 1 if classes is None else classes.count
    require(largest < count, f"a label is {largest}, but there are {count} classes")
    beyond = int(test.max(initial=0))
    told = "dataset.classes" if classes else "the training labels"
    require(
        beyond < count,
        f"a test label is {beyond}, beyond the classes 0 to {count - 1} of {told}; "
        "dataset.classes says how many there are",
    )
    require(count >= 2, "all labels are 0; at least two classes are needed")
    return count


def split_of(
    arrays: Mapping[str, Array], split: str, *, plain: bool = False, lazy: bool = False
) -> tuple[Array, Array]:
    """Checked features and labels of one split, under our names or MedMNIST's.

    With `plain`, also `x` and `y` alone, as in a file that has one split only. With `lazy`, large
    features stay as they are: what is returned becomes float32 when it is asked for.
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
    most = np.iinfo(np.intp).max  # an unsigned number beyond it would turn negative below
    require(int(y.max()) <= most, f"{split}_y has the label {y.max()}, which is no class")
    code: tuple[Array, ...] = ()
    if "scale" in arrays:  # quantised: value = lo + scale * q, by column
        for name in ("scale", "lo"):
            column = _named(arrays, name)
            require(
                column.shape == x.shape[1:] and np.issubdtype(column.dtype, np.floating),
                f"{name} is {column.dtype} {column.shape}; it must hold a float for each feature",
            )
        code = arrays["scale"].astype(np.float32), arrays["lo"].astype(np.float32)
    rows = Rows(np.asarray(x), *code)
    features = cast(Array, rows) if lazy and is_large(x) else rows.made()
    parts = (np.asarray(features[part]) for part in blocks(len(features)))
    bad = sum(int((~np.isfinite(part)).any(axis=1).sum()) for part in parts)
    require(bad == 0, f"{split}_x has NaN or infinite features in {bad} records")
    few = np.min_scalar_type(int(y.max())) if isinstance(features, Rows) else np.intp
    return features, y.astype(few)  # a million of 8 bytes each would show


def _named(arrays: Mapping[str, Array], *names: str) -> Array:
    for name in names:
        if name in arrays:
            return arrays[name]
    raise ConfigError(f"no array {' or '.join(names)}; it holds {', '.join(arrays) or 'nothing'}")
