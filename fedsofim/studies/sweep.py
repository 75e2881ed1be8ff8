"""A sweep's directory: what was asked for, what is done, and tables of it."""

import csv
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, NamedTuple

from fedsofim.config.compose import compose_many, expand
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import alone, write_whole
from fedsofim.runs.directory import Row
from fedsofim.studies.processes import Jobs
from fedsofim.studies.results import Results, Show, curve_of
from fedsofim.studies.stacks import Result

# The files of a sweep that has begun, and of one that was killed as it began.
OURS = ("configs.json.gz", "sweep.json")


def data_and_partition(config: Mapping[str, Any]) -> str:
    """The data and the division that a composed config names, in words."""
    partition = config["partition"]
    detail = f" {partition['alpha']}" if partition["kind"] == "dirichlet" else ""
    clients = f"{partition['clients']} clients"
    return f"{config['dataset']['name']}, {clients}, {partition['kind']}{detail}"


class Sweep(NamedTuple):
    """A sweep's directory: one line for each finished configuration, and tables made of them.

    Attributes:
        path: the directory.
        overrides: what was asked for, as `strategy.lr=0.1,0.3`.
        values: the composed config of each combination, in the order of `expand`.
    """

    path: Path
    overrides: list[str]
    values: list[dict[str, Any]]

    @classmethod
    def begin(cls, path: Path, overrides: Sequence[str]) -> "Sweep":
        """Make the directory, or continue what was begun there; mistakes come before any work."""
        sweep = cls(path, list(overrides), list(compose_many(expand(overrides))))
        for one in sweep.values:
            config = parse(one)
            engine = config.engine.name
            require(engine == "local", f"engine={engine}: a sweep needs engine=local")
            told = "output.theory=true: a sweep stacks runs; measure one with 'fedsofim run'"
            require(not config.output.theory, told)
            require(
                not config.track, f"track={config.track}: a sweep stacks runs; track single ones"
            )
        if (path / "sweep.json").is_file():
            begun = cls.open(path)
            require(
                begun.overrides == sweep.overrides,
                f"output.dir={path}: holds another sweep; name another directory",
            )
            require(
                begun.values == sweep.values,
                f"output.dir={path}: conf/ has changed since this sweep began; name another",
            )
            return sweep
        path.mkdir(parents=True, exist_ok=True)
        names = [found.name.lstrip(".") for found in path.iterdir()]
        strange = [name for name in names if not name.startswith(OURS)]
        require(not strange, f"output.dir={path}: is not empty, and no sweep")
        write_whole(path / "configs.json.gz", gzip.compress(json.dumps(sweep.values).encode()))
        write_whole(path / "sweep.json", json.dumps(sweep.overrides).encode())
        return sweep

    @classmethod
    def open(cls, path: Path) -> "Sweep":
        """A sweep that was begun, with the configs that it was begun with."""
        try:
            packed = (path / "configs.json.gz").read_bytes()
            overrides = json.loads((path / "sweep.json").read_text())
            return cls(path, overrides, json.loads(gzip.decompress(packed)))
        except (OSError, EOFError, ValueError) as error:
            raise ConfigError(f"{path}: a damaged sweep ({error})") from None

    @property
    def results(self) -> Results:
        """What is done, read from the directory."""
        return Results(self.path / "results.jsonl")

    def finished(self) -> dict[int, list[Row]]:
        """The curves of the configurations that are done, by index."""
        results = self.results
        rows = ((i, results.get(json.dumps(one))) for i, one in enumerate(self.values))
        return {i: row["curve"] for i, row in rows if row is not None}

    def partitions(self) -> dict[str, Row]:
        """Who held what in the first run of each data set and partition."""
        file = self.path / "partitions.json"
        return json.loads(file.read_text()) if file.is_file() else {}

    def run(self, jobs: Jobs, show: Show) -> list[Row]:
        """Run what is not done yet, and give all rows; `show` is told how many of how many are."""
        with alone(self.path):
            try:
                return self._run(jobs, show)
            except ConfigError:
                self._withdraw()
                raise

    def _withdraw(self) -> None:
        """After a mistake, before anything is done: leave the directory to the right command."""
        if not self.results.file.exists():
            for name in OURS:
                (self.path / name).unlink(missing_ok=True)

    def _run(self, jobs: Jobs, show: Show) -> list[Row]:
        configs = [parse(one) for one in self.values]
        settings = [data_and_partition(one) for one in self.values]
        drawn = {where: configs[settings.index(where)].seed for where in dict.fromkeys(settings)}
        partitions = self.partitions()

        def keep(number: int, result: Result) -> Row:
            where = settings[number]
            if where not in partitions and configs[number].seed == drawn[where]:
                partitions[where] = result.partition
                write_whole(self.path / "partitions.json", json.dumps(partitions).encode())
            return curve_of(result)

        done = self.results.run(configs, keep, jobs=jobs, show=show)
        rows = list(self._rows([row["curve"] for row in done]))
        self._write_tables(rows)
        return rows

    def _rows(self, curves: Sequence[list[Row]]) -> Iterator[Row]:
        for curve, overrides in zip(curves, expand(self.overrides), strict=True):
            parts = (override.partition("=") for override in overrides)
            settings = {key: _number(value) for key, _, value in parts}
            for point in curve:
                yield {**settings, **point}

    def _write_tables(self, rows: Sequence[Row]) -> None:
        text = StringIO()
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self.path / "results.csv", text.getvalue().encode())
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            return  # the extra 'tables' is not installed; the CSV holds the same
        buffer = BytesIO()
        columns = {name: _column([row[name] for row in rows]) for name in rows[0]}
        pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
        write_whole(self.path / "results.parquet", buffer.getvalue())


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _column(values: Sequence[object]) -> list[object]:
    """As they are, or all as text where some are text: a column has one type."""
    mixed = len({isinstance(value, str) for value in values}) > 1
    return [str(value) for value in values] if mixed else list(values)
