"""A table of rows, one for each person, visit or machine: `dataset=table`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.rng import Purpose, stream
from fedsofim.data.classes import NAMES
from fedsofim.data.own import Data
from fedsofim.data.schema import Category, Number, Schema, plain, read_schema
from fedsofim.data.vision import optional

SUFFIXES = (".csv", ".parquet")
# What stands for a missing value in a CSV file.
MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"]


@dataclass(frozen=True, kw_only=True)
class Table(Data):
    """A table, `.csv` or `.parquet`, whose schema says what its columns mean.

    Attributes:
        path: the file.
        target: the column that is predicted; by default the schema's.
        client: the column that says whose each row is, for `partition=natural`.
        schema: a YAML file that declares ranges and values; by default `x.schema.yaml` beside
            `x.csv`. 'fedsofim data schema x.csv' drafts it.
        test: a file of test rows.
        split: a column that says `train` or `test` of each row, instead.
        share: of all rows, drawn at random, that are the test set where neither is given.
    """

    path: str
    target: str | None = None
    client: str | None = None
    schema: str | None = None
    test: str | None = None
    split: str | None = None
    share: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.share < 1, f"share={self.share}: must be at least 0 and below 1")
        require(not (self.test and self.split), "test, split: give one of them")
        require(Path(self.path).name != "???", "path: name a table, .csv or .parquet")

    @property
    def name(self) -> str:
        return "table"

    def declared(self) -> Schema:
        """The schema."""
        require(Path(self.path).is_file(), f"dataset.path={self.path}: there is no such file")
        return read_schema(schema_file(Path(self.path), self.schema), self.target)

    def arrays(self) -> Mapping[str, Array]:
        schema, file = self.declared(), Path(self.path)
        more = [name for name in (self.client, self.split) if name]
        rows = read_columns(file, schema, [schema.target, *more])
        x, y = features(rows, schema, file), labels(rows, schema, file)
        out: dict[str, Array] = {NAMES: np.array(schema.classes.names)}
        held = self._held(rows, len(y), file)
        out |= {"train_x": x[~held], "train_y": y[~held]}
        if self.client:
            whose = rows[self.client]
            empty = np.flatnonzero(whose == "")
            require(empty.size == 0, f"{file}: row {_row(empty)} has no {self.client}")
            out["train_client_id"] = whose[~held]
        if self.test:
            other = Path(self.test)
            tests = read_columns(other, schema, [schema.target])
            return out | {
                "test_x": features(tests, schema, other),
                "test_y": labels(tests, schema, other),
            }
        return out | ({"test_x": x[held], "test_y": y[held]} if held.any() else {})

    def _held(self, rows: Mapping[str, Array], count: int, file: Path) -> Array:
        """Which rows are the test set, `(N,)`."""
        if self.split:
            told = rows[self.split]
            bad = np.flatnonzero(~np.isin(told, ("train", "test")))
            require(bad.size == 0, f"{file}: row {_row(bad)}: {self.split} must be train or test")
            return np.asarray(told == "test")
        held = np.zeros(count, bool)
        if not self.test:
            order = stream(0, Purpose.HOLDOUT).permutation(count)
            held[order[: round(self.share * count)]] = True
        return held


def schema_file(table: Path, given: str | None = None) -> Path:
    """Where a table's schema is."""
    return Path(given) if given else table.with_suffix(".schema.yaml")


def read_columns(file: Path, schema: Schema, more: Sequence[str] = ()) -> dict[str, Array]:
    """The columns of a table: numbers as float64, NaN where missing; all others as texts."""
    table, names = read_table(file, [*schema.columns, *more]), (*schema.columns, *more)
    return coded_columns({n: table.column(n).to_pylist() for n in names}, schema, file)


def coded_columns(
    columns: Mapping[str, Sequence[object]], schema: Schema, file: Path
) -> dict[str, Array]:
    """Columns of any values, as `read_columns` gives them."""
    out = {}
    for name, values in columns.items():
        numeric = isinstance(schema.columns.get(name), Number)
        out[name] = _numbers(values, name, file) if numeric else np.array(list(map(plain, values)))
    return out


def read_table(file: Path, names: Sequence[str] | None = None, *, every: bool = False) -> Any:
    """A table as pyarrow reads it; texts are not interpreted.

    Args:
        file: `.csv` or `.parquet`.
        names: the columns that must be there, and are read; by default all.
        every: read the others as well.
    """
    require(file.is_file(), f"dataset.path={file}: there is no such file")
    require(file.suffix in SUFFIXES, f"dataset.path={file}: must end in .csv or .parquet")
    pyarrow = optional("pyarrow", "tables need", "tables")
    try:
        if file.suffix == ".parquet":
            parquet = optional("pyarrow.parquet", "tables need", "tables")
            held, read = parquet.read_schema(file).names, parquet.read_table
        else:
            csv = optional("pyarrow.csv", "tables need", "tables")
            held, read = csv.open_csv(file).schema.names, csv.read_csv
        lacks = [name for name in names or () if name not in held]
        require(not lacks, f"has no column {', '.join(lacks)}; it has {', '.join(held)}")
        twice = sorted({name for name in held if held.count(name) > 1})
        require(not twice, f"has several columns {', '.join(twice)}")
        wanted = held if every else list(dict.fromkeys(names or held))
        if file.suffix == ".parquet":
            table = read(file, columns=wanted)
        else:
            texts = dict.fromkeys(wanted, pyarrow.string())
            how = {"column_types": texts, "null_values": MISSING, "strings_can_be_null": True}
            table = read(file, convert_options=csv.ConvertOptions(include_columns=wanted, **how))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    except (pyarrow.ArrowException, OSError) as error:
        told = " ".join(str(error).split())
        raise ConfigError(f"{file}: not a readable table ({told[:200]})") from None
    require(table.num_rows > 0, f"{file}: has no rows")
    return table


def _numbers(values: Sequence[object], name: str, file: Path) -> Array:
    out = np.empty(len(values))
    for i, value in enumerate(values):
        try:
            out[i] = np.nan if value is None else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ConfigError(f"{file}: row {i + 1}: {name} is {value!r}, not a number") from None
    return out


def features(rows: Mapping[str, Array], schema: Schema, file: Path) -> Array:
    """The features of all rows, `(N, F)` float32; each row's depend on it and the schema alone."""
    parts = [_coded(column, rows[name]) for name, column in schema.columns.items()]
    x = np.concatenate(parts, axis=1)
    require(bool(np.isfinite(x).all()), f"{file}: has infinite numbers")
    return x


def _coded(column: Number | Category, values: Array) -> Array:
    return column.coded(values)


def labels(rows: Mapping[str, Array], schema: Schema, file: Path) -> Array:
    """The classes of all rows, `(N,)`; a target that is missing or not declared is an error."""
    names = np.array(schema.classes.names)
    told = rows[schema.target]
    same = told[:, None] == names
    bad = np.flatnonzero(~same.any(axis=1))
    require(
        bad.size == 0,
        f"{file}: row {_row(bad)}: {schema.target} is {str(told[bad[0]] if bad.size else '')!r}, "
        f"and the schema's classes are {', '.join(schema.classes.names)}",
    )
    return np.asarray(same.argmax(axis=1))


def _row(numbers: Array) -> int:
    """The first of these rows, as people count them: the header is not counted."""
    return int(numbers[0]) + 1 if numbers.size else 0
