"""The one store of finished runs, which sweeps, searches and tables share."""

import base64
import json
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import numpy as np

from fedsofim import __version__
from fedsofim.config.schema import Config
from fedsofim.core.arrays import Array
from fedsofim.core.files import naming
from fedsofim.runs.directory import Row, finite
from fedsofim.studies.processes import Jobs
from fedsofim.studies.stacks import Result, run_all

Show = Callable[[int, int], None]
# What runs the runs that are still to do, given by number: gives each with its row.
Work = Callable[[list[int]], Generator[tuple[int, Row]]]


class Results:
    """Finished runs in a file, a line each, so that work that was interrupted goes on.

    A run is found again by the text of its config; another release of this package is another run.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._rows: dict[str, Row] = {}
        for line in file.read_bytes().splitlines() if file.is_file() else []:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # cut short by a crash; it is run again
            if isinstance(row, dict) and "run" in row:
                self._rows[row.pop("run")] = row

    def get(self, config: str) -> Row | None:
        """What a run gave, if it is finished."""
        return self._rows.get(_key(config))

    def run(
        self,
        configs: Sequence[Config],
        keep: Callable[[int, Result], Row],
        *,
        every: int = 10,
        jobs: Jobs = None,
        show: Show | None = None,
    ) -> list[Row]:
        """Run the configs that are not there yet, and give the row of each.

        Args:
            configs: what to run, on the local engine.
            keep: what is kept of a result, given its number among the configs.
            every: rounds between recorded rounds; the last is always recorded.
            jobs: processes, by default one for each core; or a cluster's.
            show: told how many of how many are done.
        """

        def work(todo: list[int]) -> Generator[tuple[int, Row]]:
            with closing(run_all([configs[i] for i in todo], every=every, jobs=jobs)) as results:
                for result in results:
                    number = todo[result.number]
                    yield number, keep(number, result)

        return self.complete([config.text for config in configs], work, show)

    def complete(self, configs: Sequence[str], work: Work, show: Show | None = None) -> list[Row]:
        """Run what is not there yet, and give all rows in the order of the configs.

        Args:
            configs: the text of each run's config; equal ones are run once.
            work: runs those that are missing, in any order.
            show: told how many of how many are done.
        """
        keys = [_key(config) for config in configs]
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        todo = sorted(i for key, i in first.items() if key not in self._rows)
        known = len(first) - len(todo)
        show = show or (lambda done, total: None)
        show(known, len(first))
        with closing(work(todo)) as found:
            for done, (i, row) in enumerate(found, start=known + 1):
                self._add(keys[i], row)
                show(done, len(first))
        return [self._rows[key] for key in keys]

    def forget(self) -> None:
        """Remove the file: all that it was kept for is done."""
        self.file.unlink(missing_ok=True)

    def _add(self, key: str, row: Row) -> None:
        line = json.dumps({"run": key, **row}, allow_nan=False).encode() + b"\n"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with naming(self.file), open(self.file, "ab+", buffering=0) as file:
            if file.tell():
                file.seek(-1, 2)
                if file.read() != b"\n":  # a line that a crash cut short
                    line = b"\n" + line
            file.write(line)
        self._rows[key] = row


def _key(config: str) -> str:
    return sha256(f"{__version__} {config}".encode()).hexdigest()[:16]


def curve_of(result: Result) -> Row:
    """A result's curve, as a row of the store."""
    return {"curve": [{k: finite(v) for k, v in point.items()} for point in result.curve]}


def pack(predictions: Array) -> str:
    """Predicted classes, as text."""
    return base64.b64encode(zlib.compress(predictions.astype("<i2").tobytes())).decode()


def unpack(text: str) -> Array:
    """The inverse of `pack`.

    >>> unpack(pack(np.array([3, 0, 9])))
    array([3, 0, 9], dtype=int16)
    """
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i2").astype(np.int16)
