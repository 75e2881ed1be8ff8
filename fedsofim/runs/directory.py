"""A run's directory: written so that it can be read, or continued, after any interruption.

Files are replaced whole; `metrics.jsonl` grows by whole lines. A directory appears under its name
only when it holds enough to be resumed.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedsofim.core.arrays import Array, flatten, unflatten
from fedsofim.core.errors import ConfigError, Stopped, require
from fedsofim.core.files import naming, write_whole
from fedsofim.data import npz
from fedsofim.runs.experiment import RunState
from fedsofim.runs.record import Record, Released
from fedsofim.strategies.average import blank, model_of
from fedsofim.strategies.rule import Empty, ServerState
from fedsofim.transforms.stages import Geometry

Row = dict[str, Any]
AVERAGE = "server.average."
# What reading a damaged text can raise.
DAMAGE = (ValueError, RecursionError)
ERRORS = "errors.log"  # what Ray and Flower said, in full, when they ended a run
THEORY = "theory.jsonl"  # what a simulator measured of every round, if it was asked to


def _record_like(saved: Mapping[str, Any]) -> Record:
    """A blank record with as many rows as the saved one."""
    return Record(released=Released.blank(len(saved["record.released.std"])))


def _number(text: str) -> float:
    """A number of ours, which are finite."""
    value = float(text)
    return value if math.isfinite(value) else _refused(text)


def _refused(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def finite(value: Any) -> Any:
    """The value, or `None` for a number that JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RunDir:
    """The directory of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls, path: Path, config: Mapping[str, Any], partition: Row, state: RunState
    ) -> "RunDir":
        """Make a new run directory, resumable from the first moment."""
        draft = cls(path.parent / f".{path.name}.{os.getpid()}")
        try:
            draft.path.mkdir(parents=True)
            draft.write_config(config)
            draft.write_json("partition.json", partition)
            draft.write("metrics.jsonl", b"")
            draft.checkpoint(state)
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            require(
                not path.exists(),
                f"output.dir={path}: exists already; continue it with "
                f"'fedsofim resume {path}', or name another",
            )
            draft.path.rename(path)
        except OSError as error:
            raise ConfigError(f"output.dir={path}: cannot be written ({error.strerror})") from None
        finally:
            shutil.rmtree(draft.path, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """Open a directory that a run left."""
        for name in ("config.yaml", "checkpoint.npz", "metrics.jsonl", "partition.json"):
            require((path / name).is_file(), f"{path}: not a run directory (it has no {name})")
        return cls(path)

    def write(self, name: str, content: bytes) -> None:
        """Replace a file as a whole."""
        with self._there():
            write_whole(self.path / name, content, parents=False)

    @contextmanager
    def _there(self) -> Iterator[None]:
        """Tell of a directory that was removed; to make it again would leave half of a run."""
        try:
            yield
        except FileNotFoundError:
            told = "was removed while the run was at work there; start it anew"
            require((self.path / "config.yaml").is_file(), f"{self.path}: {told}")
            raise

    def write_config(self, config: Mapping[str, Any], note: str | None = None) -> None:
        """Replace the config, with one more note above it on how the run was changed, if any."""
        file = self.path / "config.yaml"
        lines = file.read_text().splitlines() if file.is_file() else []
        notes = [line for line in lines if line.startswith("#")] + ([f"# {note}"] if note else [])
        text = "".join(f"{line}\n" for line in notes) + yaml.safe_dump(
            dict(config), sort_keys=False
        )
        self.write("config.yaml", text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Replace a JSON file as a whole."""
        self.write(name, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())

    def write_arrays(self, name: str, **arrays: Any) -> None:
        """Replace a `.npz` file as a whole."""
        buffer = BytesIO()
        np.savez(buffer, **arrays)
        self.write(name, buffer.getvalue())

    def read_json(self, name: str) -> Any:
        """The content of a JSON file."""
        try:
            return json.loads((self.path / name).read_bytes())
        except DAMAGE as error:
            raise ConfigError(f"{self.path / name}: damaged ({error})") from None

    def config(self) -> dict[str, Any]:
        """The resolved config that the run was started with."""
        try:
            values = yaml.safe_load((self.path / "config.yaml").read_bytes())
        except (yaml.YAMLError, *DAMAGE):
            values = None
        good = isinstance(values, dict) and _plain(values)
        require(good, f"{self.path / 'config.yaml'}: not a config")
        return dict(values)

    def append(self, row: Row, name: str = "metrics.jsonl") -> None:
        """Add one row to the metrics, or to another file of rows."""
        path, line = self.path / name, (json.dumps(row, allow_nan=False) + "\n").encode()
        with self._there(), naming(path), open(path, "ab", buffering=0) as file:
            while line:  # a disk that is nearly full takes a part, and only then says so
                line = line[file.write(line) :]

    def metrics(self, rounds: int | None = None) -> list[Row]:
        """The rows of the first `rounds` rounds, of all by default."""
        return self.rows("metrics.jsonl")[:rounds]

    def rows(self, name: str) -> list[Row]:
        """The rows of a file that grows by lines; none if it is not there."""
        rows: list[Row] = []
        file = self.path / name
        for line in file.read_bytes().splitlines() if file.is_file() else []:
            try:
                row = json.loads(line, parse_constant=_refused, parse_float=_number)
            except DAMAGE:
                break  # a line cut short by a crash; the checkpoint is older
            if not isinstance(row, dict):
                break
            rows.append(row)
        return rows

    def checkpoint(self, state: RunState) -> None:
        """Save all that the run knows."""
        self.write_arrays("checkpoint.npz", **flatten(state))

    def restore(self, blank: RunState) -> RunState:
        """The saved state; `blank`, a fresh one, gives its shape, which must agree."""
        with self._saved() as saved:
            sized = blank._replace(record=_record_like(saved))
            state: RunState = unflatten(sized, saved)
        return state

    def record(self) -> Record:
        """What was released, and on what terms, without the rest of the state."""
        with self._saved() as saved:
            record: Record = unflatten(_record_like(saved), saved, "record.")
        return record

    def parameters(self) -> tuple[Array, int]:
        """The saved parameters, for records as they are, and how many rounds they are of."""
        with self._saved() as saved:
            theta, P = saved["server.theta"], saved.get("server.shared.P")
            averages = f"{AVERAGE}total" in saved
            average = unflatten(blank("tail" if averages else "none", theta), saved, AVERAGE)
            shared = Empty() if P is None else Geometry(P)
            state = ServerState(theta, Empty(), int(saved["server.t"]), shared, average)
            return model_of(state), max(0, state.t)

    @contextmanager
    def _saved(self) -> Iterator[dict[str, Any]]:
        """The arrays of the checkpoint; whatever is wrong with them is told in one line."""
        file = self.path / "checkpoint.npz"
        try:
            yield npz.read(file)
        except Exception as error:  # a damaged archive can fail in any of its parts
            why = str(error).removeprefix(f"{file}: ")
            raise ConfigError(f"{file}: does not fit this run, or is damaged ({why})") from None

    def rewind(self, rounds: int) -> None:
        """Drop rows beyond the first `rounds` rounds, of the metrics and of what else has rows."""
        rows = self.metrics(rounds)
        require(
            [row.get("round") for row in rows] == list(range(1, rounds + 1)),
            f"{self.path / 'metrics.jsonl'}: damaged (it should begin with rounds 1 to {rounds})",
        )
        self._write_rows("metrics.jsonl", rows)
        if theory := self.rows(THEORY):
            self._write_rows(THEORY, [row for row in theory if row["round"] <= rounds])

    def _write_rows(self, name: str, rows: list[Row]) -> None:
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        self.write(name, lines.encode())


def _plain(values: dict[Any, Any]) -> bool:
    """Whether JSON could hold it: text for keys, and no dates, sets or circles."""
    try:
        return bool(json.loads(json.dumps(values)) == values)
    except (TypeError, ValueError, RecursionError):
        return False


@contextmanager
def keeping(place: RunDir | None) -> Iterator[None]:
    """Say of a full disk, or whatever else refuses a run its files, how to go on afterwards.

    What others said about a mistake, in pages, goes to a file that its line names. Ctrl-C that does
    not wait for the end of a round tells how to go on, too.
    """
    try:
        yield
    except KeyboardInterrupt:
        if place is None:
            raise
        told = f"Stopped. Continue with: fedsofim resume {place.path}"
        raise Stopped(told, place.path) from None
    except ConfigError as error:
        if place is None or not error.details:
            raise
        file = place.path / ERRORS
        with suppress(OSError):
            place.write(ERRORS, error.details.encode(errors="replace"))
            raise ConfigError(f"{error}; in full: {file}") from None
        raise
    except OSError as error:
        file = Path(error.filename or "")
        if place is None or place.path not in file.parents:
            raise
        how = f"when that is mended, continue with 'fedsofim resume {place.path}'"
        raise OSError(error.errno, f"{error.strerror}; {how}", str(file)) from None
