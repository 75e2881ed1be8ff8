"""What is in a file of records, what is wrong with it, and what of it a deployment would tell."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.data import npz
from fedsofim.data.classes import Classes, in_order, names_in
from fedsofim.data.hf_columns import is_saved
from fedsofim.data.hugging_face import HuggingFace
from fedsofim.data.images import SPLITS, Reading, folder_files, image_array, owners
from fedsofim.data.records import split_of
from fedsofim.data.schema import Number
from fedsofim.data.table import SUFFIXES, Table, features, labels, read_columns

TOLD, KEPT, DECLARED = "yes", "no", "as declared"
# Fewer records of a class than this are hardly learnt through noise.
SCARCE = 20


class Line(NamedTuple):
    """One thing that is known, and whether the server of a deployment would be told."""

    what: str
    value: str
    public: str = KEPT


class Inspection(NamedTuple):
    """All that is known of a file, and what is wrong with it or may be."""

    lines: list[Line]
    faults: list[str]
    doubts: list[str]


def inspect(path: Path, classes: Classes | None = None, table: Table | None = None) -> Inspection:
    """Look at a `.npz` of features or images, a folder by class, or a table.

    Args:
        path: the file or folder.
        classes: those that were declared, if any.
        table: how a table is read; by default with the schema beside it.
    """
    found = Inspection([], [], [])
    try:
        require(path.exists(), f"{path}: there is no such file or folder")
        if path.is_dir() and is_saved(path):
            parts = _hugging_face(HuggingFace(path=str(path)), classes)
        elif path.is_dir():
            parts = _folder(path, classes)
        elif path.suffix in SUFFIXES:
            parts = _table(table or Table(path=str(path)))
        else:
            require(path.suffix == ".npz", f"{path}: neither .npz, .csv, .parquet nor a folder")
            parts = _npz(path, classes)
        for one in parts:
            (found.lines if isinstance(one, Line) else found.doubts).append(one)  # type: ignore[arg-type]
    except ConfigError as error:
        found.faults.append(str(error))
    return found


def shown(found: Inspection) -> str:
    """What was found, as plain text."""
    wide = max([len(line.what) for line in found.lines], default=0)
    lines = [f"{'':<{wide}}  public       value"] if found.lines else []
    lines += [f"{what:<{wide}}  {public:<11}  {value}" for what, value, public in found.lines]
    lines += [f"look at: {doubt}" for doubt in found.doubts]
    lines += [f"wrong: {fault}" for fault in found.faults]
    lines += [] if found.faults or found.doubts else ["nothing is wrong with it"]
    return "\n".join(lines)


def _npz(file: Path, classes: Classes | None) -> Iterator[Line | str]:
    headers = npz.headers(file)
    name = image_array(headers, "train") or ("x" if "x" in headers else None)
    require(name is not None, f"{file}: no array train_x, x or train_images")
    shape = headers[str(name)].shape
    images = len(shape) > 2
    wrong = f"{file}: {name} has shape {shape}; features are (records, features)"
    require(str(name).endswith("images") or not images, wrong)
    with npz.naming(file):
        arrays = npz.read(file, *(n for n in headers if not (images and n.endswith("images"))))
        npz.check_seal(arrays)
        told, own = npz.provenance(arrays), names_in(arrays)
        yield Line("kind", "images" if images else "features")
        yield Line("sealed", "yes, unchanged" if npz.SHA256 in arrays else "no")
        if "backbone" in told:
            yield Line("made by", f"{told['backbone']['name']} ({told.get('made_by', '?')})")
        for split in SPLITS:
            if not {f"{split}_x", f"{split}_images"} & headers.keys() and (
                split != "train" or name != "x"
            ):
                continue
            if images:
                shape, y = headers[f"{split}_images"].shape, _labels(arrays, split)
            else:
                x, y = split_of(arrays, split, plain=split == "train")
                shape = x.shape
                if split == "train":
                    yield from _features(x)
            yield from _split(split, shape, y, own, classes)
        ids = owners(arrays, "train", headers[str(name)].shape[0])
        if ids is not None:
            yield Line("owners", f"{len(np.unique(ids))} (train_client_id)")
    yield from _names(own, classes)


def _labels(arrays: Mapping[str, Array], split: str) -> Array:
    y = next((arrays[n] for n in (f"{split}_labels", f"{split}_y") if n in arrays), None)
    if y is None:
        raise ConfigError(f"no array {split}_labels")
    require(y.ndim == 1 or y.shape[1:] == (1,), f"{split}_labels: several labels for each record")
    return y.reshape(-1).astype(np.intp)


def _split(
    split: str, shape: tuple[int, ...], y: Array, own: tuple[str, ...], classes: Classes | None
) -> Iterator[Line | str]:
    known = classes or (Classes.of(own) if own else None)
    largest = int(y.max())
    if classes is not None:
        y = in_order(y, own, classes.names)
    count = known.count if known else largest + 1
    require(int(y.max()) < count, f"{split}: a label is {y.max()}, but there are {count} classes")
    public = TOLD if split == "train" else KEPT
    yield Line(f"{split} records", f"{len(y):,}", public)
    if split == "train" and shape:
        kind = "features" if len(shape) == 2 else "image size"
        yield Line(kind, " x ".join(map(str, shape[1:])), TOLD)
    yield from _counts(split, np.bincount(y, minlength=count), known.names if known else ())


def _counts(split: str, counts: Array, names: tuple[str, ...]) -> Iterator[Line | str]:
    called = names or tuple(f"class {k}" for k in range(len(counts)))
    pairs = list(zip(called, counts.tolist(), strict=False))
    shown = ", ".join(f"{name} {n:,}" for name, n in pairs[:20])
    yield Line(f"{split} records of each class", shown + (" …" if len(pairs) > 20 else ""))
    scarce = [name for name, n in pairs if 0 < n < SCARCE]
    if scarce and split == "train":
        yield f"fewer than {SCARCE} records: {', '.join(scarce[:10])}; noise will hide them"
    absent = [name for name, n in pairs if n == 0]
    if absent:
        yield f"{split} has no record of {', '.join(absent[:10])}"


def _features(x: Array) -> Iterator[Line | str]:
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(x, axis=1)
    yield Line("norm of a record", f"median {np.median(norms):.3g}, largest {norms.max():.3g}")
    constant = int((x.min(axis=0) == x.max(axis=0)).sum())
    if constant:
        yield f"{constant} of {x.shape[1]} features are the same in all records"
    same = len(x) - len(np.unique(x, axis=0))
    if same:
        yield f"{same:,} records are copies: of a person with several records more may be learnt"


def _names(own: tuple[str, ...], classes: Classes | None) -> Iterator[Line | str]:
    if own:
        yield Line("classes that it names", ", ".join(own))
    if classes is not None:
        yield Line("classes that are declared", str(classes), TOLD)
    elif own:
        yield "for a deployment declare the classes that all agreed on: --classes a,b,c"
    else:
        yield "names no classes: what a label means, only its number says"


def _folder(root: Path, classes: Classes | None) -> Iterator[Line | str]:
    tree = folder_files(root, classes.names if classes else ())
    names = classes.names if classes and classes.names else tuple(tree["train"])
    yield Line("kind", "images, by folder")
    for split, groups in tree.items():
        unknown = [name for name in groups if name not in names]
        require(
            not unknown, f"{root / split}: {', '.join(unknown)} is not among {', '.join(names)}"
        )
        counts = np.array([len(groups.get(name, ())) for name in names])
        public = TOLD if split == "train" else KEPT
        yield Line(f"{split} records", f"{counts.sum():,}", public)
        yield from _counts(split, counts, names)
    yield from _names(tuple(tree["train"]), classes)


def _hugging_face(data: HuggingFace, classes: Classes | None) -> Iterator[Line | str]:
    images = data.holds_images()
    yield Line("kind", f"a data set of Hugging Face's, of {'images' if images else 'features'}")
    told = data.images(Reading(classes=classes, as_rgb=True)) if images else None
    arrays = {} if told else data.arrays()
    own = names_in(arrays)
    for split in ("train", "test"):
        if told and split in told.splits:
            y, shape = told.splits[split].labels, ()
        elif f"{split}_x" in arrays:
            x, y = split_of(arrays, split)
            shape = x.shape
            if split == "train":
                yield from _features(x)
        else:
            continue
        yield from _split(split, shape, y, told.classes.names if told else own, classes)
    yield from _names(told.classes.names if told else own, classes)


def _table(table: Table) -> Iterator[Line | str]:
    file, schema = Path(table.path), table.declared()
    rows = read_columns(file, schema, [schema.target])
    y = labels(rows, schema, file)
    features(rows, schema, file)
    yield Line("kind", f"a table for {schema.target}")
    yield Line("records", f"{len(y):,}", TOLD)
    yield Line("features", f"{schema.width} of {len(schema.columns)} columns", TOLD)
    yield Line("classes", str(schema.classes), DECLARED)
    counts = np.bincount(y, minlength=schema.classes.count)
    yield from _counts("train", counts, schema.classes.names)
    for name, column in schema.columns.items():
        values = rows[name]
        if isinstance(column, Number):
            missing = int(np.isnan(values).sum())
            odd = int(((values < column.low) | (values > column.high)).sum())
            what = f"{column.low:g} to {column.high:g}"
        else:
            missing = int((values == "").sum())
            odd = int((~np.isin(values, ("", *column.values))).sum())
            what = ", ".join(column.values[:8]) + (" …" if len(column.values) > 8 else "")
        yield Line(f"column {name}", what, DECLARED)
        if missing:
            yield f"{name}: {missing:,} missing, coded as " + (
                "the middle of the range" if isinstance(column, Number) else "none of the values"
            )
        if odd:
            yield f"{name}: {odd:,} beyond what is declared, " + (
                "clipped to the range" if isinstance(column, Number) else "coded as none of them"
            )
