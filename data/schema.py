"""What the columns of a table mean, declared: so that nothing has to be read from private rows.

A range or a list of values that is computed from records tells something about them, for free. So
each column is scaled and coded by what its schema says is possible, and each row by itself:

- a number is scaled from its range to -1 ... 1; beyond the range it is clipped to it; a missing one
  is the middle, 0, and with `flag: true` a further feature says that it is missing;
- a category is one-hot; a value that is not declared, or missing, is all zeros.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.data.classes import Classes

# Of a drafted schema: a whole number with fewer values is a category; a text with more is left out.
FEW, MANY = 8, 50
HEAD = """\
# Drafted from the rows of {file}: check every line. What is read from private rows can tell of
# them, so declare what is possible, not what is there: the range of a unit, all values that a
# form allows. A number is scaled from low ... high to -1 ... 1, and clipped; a missing one is the
# middle (flag: true adds a feature that says so). A list is one-hot; other values are all zeros.
"""


@dataclass(frozen=True)
class Number:
    """A column of numbers, from `low` to `high`; `flag` adds a feature for missing ones."""

    low: float
    high: float
    flag: bool = False

    @property
    def width(self) -> int:
        """How many features it gives."""
        return 1 + self.flag

    def coded(self, values: Array) -> Array:
        """Features `(N, width)` from numbers `(N,)`, NaN where one is missing.

        >>> Number(0, 10, flag=True).coded(np.array([0, 7.5, 99, np.nan])).tolist()
        [[-1.0, 0.0], [0.5, 0.0], [1.0, 0.0], [0.0, 1.0]]
        """
        missing = np.isnan(values)
        x = (2 * values - self.low - self.high) / (self.high - self.low)
        x = np.where(missing, 0, np.clip(x, -1, 1))
        return np.stack([x, missing] if self.flag else [x], axis=1).astype(np.float32)


@dataclass(frozen=True)
class Category:
    """A column of texts, each one of `values`."""

    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """How many features it gives."""
        return len(self.values)

    def coded(self, values: Array) -> Array:
        """Features `(N, width)` from texts `(N,)`, empty where one is missing.

        >>> Category(("a", "b")).coded(np.array(["b", "x", ""])).tolist()
        [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
        """
        return np.asarray(values[:, None] == np.array(self.values), np.float32)


@dataclass(frozen=True)
class Schema:
    """What the columns of a table mean.

    Attributes:
        target: the column that is predicted.
        classes: its values.
        columns: those that are read, in order.
    """

    target: str
    classes: Classes
    columns: Mapping[str, Number | Category]

    @property
    def width(self) -> int:
        """How many features a row has; public."""
        return sum(column.width for column in self.columns.values())


def read_schema(file: Path, target: str | None = None) -> Schema:
    """Read and check a schema; `target` is compared with the file's."""
    require(
        file.is_file(),
        f"{file}: there is no schema of the table; draft one with "
        "'fedsofim data schema TABLE --target COLUMN', and check it",
    )
    try:
        values = yaml.safe_load(file.read_text("utf-8"))
        return _schema(values, target)
    except (yaml.YAMLError, UnicodeError) as error:
        told = " ".join(str(error).split())
        raise ConfigError(f"{file}: not a readable schema ({told})") from None
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _schema(values: Any, target: str | None) -> Schema:
    known = {"target", "classes", "columns"}
    require(
        isinstance(values, Mapping) and values.keys() == known,
        f"must have {', '.join(sorted(known))}, and nothing else",
    )
    own = values["target"]
    require(
        target in (None, own), f"is about target {own}, and dataset.target={target}; draft another"
    )
    require(isinstance(values["classes"], list), "classes: give a list of the target's values")
    columns = values["columns"]
    require(isinstance(columns, Mapping) and bool(columns), "columns: there are none")
    require(own not in columns, f"columns: {own} is the target, and would tell itself")
    classes = Classes.of([plain(value) for value in values["classes"]])
    return Schema(str(own), classes, {str(k): _column(str(k), v) for k, v in columns.items()})


def _column(name: str, told: Any) -> Number | Category:
    if isinstance(told, list):
        found = tuple(plain(value) for value in told)
        good = bool(found) and len(set(found)) == len(found) and "" not in found
        require(good, f"{name}: give a list of values, each once")
        return Category(found)
    right = isinstance(told, Mapping) and {"low", "high"} <= told.keys() <= {"low", "high", "flag"}
    require(right, f"{name}: give a list of values, or low and high (and flag) of a number")
    low, high, flag = told["low"], told["high"], told.get("flag", False)
    numbers = all(isinstance(v, int | float) and math.isfinite(v) for v in (low, high))
    require(numbers and low < high, f"{name}: low={low}, high={high}: must be numbers, low < high")
    require(isinstance(flag, bool), f"{name}: flag={flag}: must be true or false")
    return Number(float(low), float(high), flag)


def plain(value: object) -> str:
    """A value as a text, the same whether a file keeps numbers or texts; nothing is empty.

    >>> plain(3.0), plain(True), plain(None), plain(" a ")
    ('3', 'true', '', 'a')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def drafted(file: str, target: str, columns: Mapping[str, Sequence[object]]) -> str:
    """A schema for people to check, as YAML, from the values of every column but the others'."""
    require(target in columns, f"{file}: has no column {target}; it has {', '.join(columns)}")
    classes = sorted({plain(value) for value in columns[target]} - {""})
    require(
        2 <= len(classes) <= MANY,
        f"{file}: {target} has {len(classes)} values; a class is one of 2 to {MANY}",
    )
    lines = [f"target: {_yaml(target)}", f"classes: {_yaml(classes)}", "columns:"]
    others = {name: values for name, values in columns.items() if name != target}
    return HEAD.format(file=file) + "\n".join([*lines, *_drafts(others)]) + "\n"


def _drafts(columns: Mapping[str, Sequence[object]]) -> Iterator[str]:
    for name, given in columns.items():
        texts = {plain(value) for value in given} - {""}
        try:
            numbers = [float(text) for text in texts]
        except ValueError:
            numbers = []
        whole = all(number.is_integer() for number in numbers)
        if numbers and not (whole and len(texts) <= FEW) and min(numbers) < max(numbers):
            low, high = _rounded(min(numbers), max(numbers))
            yield f"  {_yaml(name)}: {{low: {low:g}, high: {high:g}}}"
        elif 1 <= len(texts) <= MANY:
            yield f"  {_yaml(name)}: {_yaml(sorted(texts))}"
        else:
            yield f"  # {name}: {len(texts)} different texts; left out"


def _rounded(low: float, high: float) -> tuple[float, float]:
    """A round range around these numbers."""
    step = 10 ** math.floor(math.log10(high - low))
    return math.floor(low / step) * step, math.ceil(high / step) * step


def _yaml(value: object) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    )
