"""What a run's model says of records in a file: features, or images where the backbone is known."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsofim.api.export import model_for
from fedsofim.api.history import History
from fedsofim.api.images import made_by, preparation, told_by
from fedsofim.api.model import Model
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.data import npz
from fedsofim.data.classes import names_in
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.hf_columns import is_saved
from fedsofim.data.images import Batch, Reading, decode
from fedsofim.data.own import Data
from fedsofim.data.records import features_of
from fedsofim.data.table import SUFFIXES, Table, features, read_columns, read_table

BATCH = 256
# What a file's records may be called, with their labels' names, in the order of preference.
NAMED = {"x": "y", "images": "labels", "test_x": "test_y", "test_images": "test_labels"}


class Predicted(NamedTuple):
    """Predictions for some records.

    Attributes:
        names: of the records: their numbers from 0, or their files.
        labels: the most likely ones, `(N,)`.
        probabilities: of all classes, `(N, K)`.
    """

    names: Sequence[str]
    labels: Array
    probabilities: Array


class Records(NamedTuple):
    """Records to predict.

    Attributes:
        batches: their names, and what they are: inputs of the model or, if `images`, uint8 images.
        images: whether they are images still.
        labels: what they are said to be, `(N,)`, if the file tells.
    """

    batches: Iterable[tuple[Sequence[str], Batch]]
    images: bool
    labels: Array | None = None


def predict(
    history: History,
    records: Records,
    *,
    client: int | None = None,
    weights: Path | None = None,
) -> Iterator[Predicted]:
    """Predictions, a batch at a time.

    Args:
        history: the run.
        records: see `read`.
        client: whose model, where every client has one of its own.
        weights: the backbone's, if they are elsewhere now.
    """
    model = model_for(history, client)
    prepare = preparation(history.config.checked, weights) if records.images else np.asarray
    for names, batch in records.batches:
        yield _predicted(model, names, prepare(batch))


def _predicted(model: Model, names: Sequence[str], x: Array) -> Predicted:
    p = model.predict_proba(x)
    return Predicted(names, model.classes_[p.argmax(axis=1)], p)


def read(history: History, file: Path, array: str | None = None) -> Records:
    """The records of a `.npz` or `.npy` file, of an image, or of all images below a folder.

    Args:
        history: the run, which says how images are read.
        file: which.
        array: the array of a `.npz` that is meant; by default the first that there is of `x`,
            `images`, `test_x` and `test_images`.
    """
    require(file.exists(), f"{file}: there is no such file or folder")
    dataset = history.config.checked.dataset
    grey = isinstance(dataset, DatasetConfig) and dataset.as_rgb
    reading = Reading(as_rgb=grey)
    if file.is_dir():
        made = "'fedsofim features dataset=hf dataset.path=DIR out=x.npz' makes a file of it"
        require(not is_saved(file), f"{file}: a data set of Hugging Face's; {made}")
        paths = sorted(p for p in file.rglob("*") if p.is_file() and p.name[0] != ".")
        require(bool(paths), f"{file}: a folder with no images")
        names = [str(path.relative_to(file)) for path in paths]
        return Records(_decoded(paths, names, reading), images=True)
    if file.suffix in SUFFIXES:
        return _of_table(dataset, file)
    if file.suffix not in (".npz", ".npy"):
        return Records(_decoded([file], [file.name], reading), images=True)
    with npz.naming(file):
        require(array is None or file.suffix == ".npz", f"{array}: only a .npz has several arrays")
        arrays = npz.read(file) if file.suffix == ".npz" else {"x": npz.array(file)}
        name = _chosen(arrays, array)
        labels = arrays.get(NAMED.get(name, name.replace("_x", "_y").replace("images", "labels")))
        if labels is not None and (own := names_in(arrays)):
            labels = np.array(own)[labels.reshape(len(labels), -1)[:, 0]]
        return _of_array(history, file, arrays, name, reading)._replace(labels=labels)


def _of_table(dataset: DatasetConfig | Data, file: Path) -> Records:
    """The rows of a table, coded by the schema of the run's, with labels if it has any."""
    if not isinstance(dataset, Table):
        raise ConfigError(f"{file}: a table, and the run was trained on dataset={dataset.name}")
    schema = dataset.declared()
    told = schema.target in read_table(file, list(schema.columns), every=True).column_names
    rows = read_columns(file, schema, [schema.target] if told else [])
    x = features(rows, schema, file)
    return Records(_sliced(x), images=False, labels=rows[schema.target] if told else None)


def _chosen(arrays: Mapping[str, Array], array: str | None) -> str:
    name = array or next((name for name in NAMED if name in arrays), None)
    if name is None or name not in arrays:
        raise ConfigError(
            f"no array {array or ', '.join(NAMED)}; it holds {', '.join(arrays) or 'nothing'}; "
            "name one with --array"
        )
    return name


def _of_array(
    history: History, file: Path, arrays: Mapping[str, Array], name: str, reading: Reading
) -> Records:
    x, shape = arrays[name], history.model.shape
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        grey = x[..., None] if x.ndim == 3 else x
        return Records(_sliced(reading.colour(grey, name)), images=True)
    if x.ndim == 2:
        _require_same_backbone(history, file)
        x = features_of(arrays, name)
    require(
        x.shape[1:] == shape and x.dtype.kind in "iuf",
        f"{name} holds {x.dtype} of shape {x.shape}; this model takes records of shape {shape}, or "
        "uint8 images (N, H, W, 3)",
    )
    return Records(_sliced(x), images=False)


def _require_same_backbone(history: History, file: Path) -> None:
    """Refuse features that say they come from another backbone than the run's."""
    told = told_by(file) if file.suffix == ".npz" else {}
    try:
        ours = made_by(history.config.checked)
    except ConfigError:  # then nothing is known to compare with
        return
    for key in ours.keys() & told.keys() & {"name", "sha256"}:
        require(
            ours[key] == told[key],
            f"its features were made by {told['name']} (weights {told.get('weights')}), and those "
            f"that this model was trained on by {ours['name']} ({ours.get('weights', 'others')})",
        )


def _sliced(x: Array) -> Iterator[tuple[Sequence[str], Batch]]:
    for start in range(0, len(x), BATCH):
        part = x[start : start + BATCH]
        yield [str(start + i) for i in range(len(part))], part


def _decoded(
    files: Sequence[Path], names: Sequence[str], reading: Reading
) -> Iterator[tuple[Sequence[str], Batch]]:
    for start in range(0, len(files), BATCH):
        part = slice(start, start + BATCH)
        yield names[part], [decode(file, reading) for file in files[part]]


def accuracy(predicted: Sequence[Predicted], labels: Array, classes: Array) -> float:
    """The part of the records whose label is predicted; labels are compared as texts.

    Args:
        predicted: for all records.
        labels: what they are; numbers stand for the classes in their order if these have names.
        classes: the model's, `(K,)`.
    """
    found: list[Any] = [label for part in predicted for label in part.labels.tolist()]
    told = labels.reshape(len(labels), -1)[:, 0].tolist()
    if labels.dtype.kind in "iu" and classes.dtype.kind == "U":
        told = [classes[k] if 0 <= k < len(classes) else k for k in told]
    return float(np.mean([str(a) == str(b) for a, b in zip(found, told, strict=True)]))
