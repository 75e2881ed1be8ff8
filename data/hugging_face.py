"""A data set of Hugging Face's `datasets`, from a folder or from the hub: `dataset=hf`.

What a record is, its columns say: an image, which a backbone turns into features; a list of numbers
of one length, which is taken as features; or the columns that a schema declares, as of a table.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import sha256
from fedsofim.data.classes import NAMES
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.hf_columns import (
    decoder,
    from_disk,
    from_hub,
    is_image,
    is_list,
    values,
    writable,
)
from fedsofim.data.images import ImageSet, Reading, Split, by_name
from fedsofim.data.schema import Schema, plain, read_schema
from fedsofim.data.table import coded_columns, features, labels, schema_file

DRAFT = "a table takes dataset.schema=FILE, which 'fedsofim data schema DIR --target COLUMN' drafts"


@dataclass(frozen=True, kw_only=True)
class HuggingFace(DatasetConfig):
    """A data set of Hugging Face's: images, features, or a table with a schema.

    Attributes:
        path: a folder that `save_to_disk` wrote, or whose files `load_dataset` reads.
        hub: or a name on the hub; it is fetched to Hugging Face's own cache.
        subset: which of several sets of that name.
        column: of images, or of lists of numbers; by default the only such one.
        target: the column of labels; by default the only one of class labels, or `label`.
        client: the column that says whose each record is, for `partition=natural`.
        schema: a YAML file that declares the columns of a table; by default `x.schema.yaml` beside
            the folder `x`, if no column holds images or lists.
        train_split: what is trained on.
        test_split: what the model is tested on; by default `test`, if there is one.
    """

    name: str = "hf"
    hub: str | None = None
    subset: str | None = None
    column: str | None = None
    target: str | None = None
    client: str | None = None
    schema: str | None = None
    train_split: str = "train"
    test_split: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one = (self.path is None) != (self.hub is None)
        require(one, "path, hub: name a folder, or a data set of the hub")

    @property
    def where(self) -> str:
        """What messages begin with."""
        return self.path or f"dataset.hub={self.hub}"

    @property
    def file(self) -> Path:
        raise ConfigError(f"{self.where}: its records are no features of a backbone")

    def read(self) -> dict[str, Any]:
        names = ("subset", "column", "target", "client", "train_split", "test_split")
        told = super().read() | {n: getattr(self, n) for n in names if getattr(self, n)}
        file = self._schema_file(self.splits()["train"])
        return told | ({"schema": sha256(file)} if file else {})

    def files(self) -> list[Path]:
        """All files whose content matters."""
        if self.path is None:
            held = (one for split in self.splits().values() for one in split.cache_files)
            return sorted(Path(one["filename"]) for one in held)
        return sorted(p for p in Path(self.path).rglob("*") if p.is_file() and p.name[0] != ".")

    def splits(self) -> dict[str, Any]:
        """Its `train` and, if there is one, its `test`, as `datasets` gives them."""
        found = from_hub(self.hub, self.subset) if self.hub else from_disk(self.path, self.subset)
        held = dict(found) if hasattr(found, "keys") else {self.train_split: found}
        wanted = {"train": self.train_split, "test": self.test_split or "test"}
        for split, name in wanted.items():
            needed = split == "train" or self.test_split is not None
            has = f"it has {', '.join(held)}; dataset.{split}_split names one"
            require(name in held or not needed, f"{self.where}: has no split {name}; {has}")
        splits = {split: held[name] for split, name in wanted.items() if name in held}
        empty = [wanted[split] for split, data in splits.items() if not len(data)]
        require(not empty, f"{self.where}: {', '.join(empty)} has no records")
        return splits

    def holds_images(self) -> bool:
        train = self.splits()["train"]
        column = self._column(train)
        return column is not None and is_image(train, column)

    def of_images(self) -> bool:
        return self.holds_images()

    def client_count(self) -> int:
        require(
            self.client is not None,
            "partition=natural: dataset.client=COLUMN says whose each record is",
        )
        return len(np.unique(self._clients(self.splits()["train"])))

    def sizes(self) -> tuple[int, int, int]:
        """Training records, features (0 where images are to give them) and classes."""
        train = self.splits()["train"]
        schema, column = self.declared(train), self._column(train)
        if schema is not None:
            return len(train), schema.width, schema.classes.count
        y, names = self._labels(train)
        width = 0 if is_image(train, str(column)) else len(train[0][column])
        return len(train), width, len(names) or int(y.max()) + 1

    def images(self, reading: Reading) -> ImageSet:
        """Its images, read in batches."""
        splits: dict[str, Split] = {}
        names: tuple[str, ...] = ()
        for split, data in self.splits().items():
            column = str(self._column(data))
            y, names = self._labels(data)
            whose = self._clients(data) if self.client and split == "train" else None
            splits[split] = Split(y, decoder(data, column, reading, self.where), whose)
        return by_name(splits, names, reading)

    def arrays(self) -> dict[str, Array]:
        """Its features, by the names of a `.npz` file."""
        out: dict[str, Array] = {}
        for split, data in self.splits().items():
            schema = self.declared(data)
            x, y, names = self._of_table(data, schema) if schema else self._of_lists(data)
            out |= {f"{split}_x": x, f"{split}_y": y} | ({NAMES: np.array(names)} if names else {})
            if self.client and split == "train":
                out["train_client_id"] = self._clients(data)
        return out

    def columns(self) -> dict[str, list[Any]]:
        """The values of all columns that a schema can speak of."""
        train = self.splits()["train"]
        plain = [name for name, kind in train.features.items() if hasattr(kind, "dtype")]
        return {n: values(train, n) for n in plain if not is_image(train, n)}

    def declared(self, data: Any) -> Schema | None:
        """The schema, if it is a table."""
        file = self._schema_file(data)
        return read_schema(file, self.target) if file else None

    def _schema_file(self, data: Any) -> Path | None:
        if self.schema is not None:
            return Path(self.schema)
        return None if self._column(data) else schema_file(Path(str(self.path)))

    def _column(self, data: Any) -> str | None:
        """The column of images or lists; none of a table."""
        if self.schema is not None:
            return None
        found = [n for n in data.column_names if is_image(data, n)]
        found = found or [n for n in data.column_names if is_list(data, n)]
        if self.column is not None:
            self._require(data, self.column, "column")
            right = is_image(data, self.column) or is_list(data, self.column)
            told = f"dataset.column={self.column}: holds neither images nor lists of numbers; "
            require(right, told + DRAFT)
            return self.column
        if not found and self.path and schema_file(Path(self.path)).is_file():
            return None
        has = f"its columns are {', '.join(data.column_names)}"
        require(bool(found), f"{self.where}: no column holds images or lists; {has}; {DRAFT}")
        several = f"{self.where}: several columns could be meant; dataset.column= names one of "
        require(len(found) == 1, several + ", ".join(found))
        return str(found[0])

    def _require(self, data: Any, name: str, key: str) -> None:
        has = ", ".join(data.column_names)
        require(name in data.column_names, f"dataset.{key}={name}: no such column; it has {has}")

    def _labels(self, data: Any) -> tuple[Array, tuple[str, ...]]:
        """The labels `(N,)`, and what they number, if that is known."""
        name = self.target or self._usual(data)
        self._require(data, name, "target")
        feature, told = data.features[name], data[name][:]
        where = f"{self.where}: {name}"
        missing = [i for i, value in enumerate(told) if value is None]
        require(not missing, f"{where} is missing in record {missing[:1]}")
        if hasattr(feature, "names"):
            return np.array(told, np.intp), tuple(map(writable, feature.names))
        if all(isinstance(value, int) for value in told):
            return np.array(told, np.intp), ()
        agreed = self.agreed.names if self.agreed else ()
        texts = all(isinstance(value, str) for value in told)
        require(texts, f"{where} holds {type(told[0]).__name__}; labels are whole numbers or texts")
        require(bool(agreed), f"{where} holds texts; say which there can be: dataset.classes=[a,b]")
        odd = sorted({*told} - {*agreed})
        require(not odd, f"{where} has {odd[:1]}, which is not among {', '.join(agreed)}")
        return np.array([agreed.index(value) for value in told], np.intp), agreed

    def _usual(self, data: Any) -> str:
        """The column that labels are most likely in."""
        classes = [name for name, kind in data.features.items() if hasattr(kind, "names")]
        found = classes if len(classes) == 1 else [n for n in ("label",) if n in data.column_names]
        has = ", ".join(data.column_names)
        require(bool(found), f"{self.where}: dataset.target=COLUMN says what to predict, of {has}")
        return found[0]

    def _clients(self, data: Any) -> Array:
        name = str(self.client)
        self._require(data, name, "client")
        told = values(data, name)
        missing = [i for i, value in enumerate(told) if value is None or value == ""]
        require(not missing, f"{self.where}: {name} is missing in record {missing[:1]}")
        whole = all(isinstance(value, int) and not isinstance(value, bool) for value in told)
        return np.array(told) if whole else np.array([plain(value) for value in told])

    def _of_lists(self, data: Any) -> tuple[Array, Array, tuple[str, ...]]:
        column = str(self._column(data))
        rows = data[column][:]
        lengths = {-1 if row is None else len(row) for row in rows}
        same = len(lengths) == 1 and lengths != {-1}
        require(same, f"{self.where}: the lists of {column} must all be there, and equally long")
        return np.array(rows, np.float32), *self._labels(data)

    def _of_table(self, data: Any, schema: Schema) -> tuple[Array, Array, tuple[str, ...]]:
        wanted = [*schema.columns, schema.target]
        lacks = [name for name in wanted if name not in data.column_names]
        has = ", ".join(data.column_names)
        require(not lacks, f"{self.where}: has no column {', '.join(lacks)}; it has {has}")
        file = Path(self.where)
        rows = coded_columns({name: values(data, name) for name in wanted}, schema, file)
        return features(rows, schema, file), labels(rows, schema, file), schema.classes.names
