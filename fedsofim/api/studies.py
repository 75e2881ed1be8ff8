"""Calibration and sweeps from Python."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from fedsofim.api.config import Config, Words, named
from fedsofim.api.data import labelled
from fedsofim.api.history import frame
from fedsofim.api.training import observer_for
from fedsofim.config.words import text
from fedsofim.core.errors import require
from fedsofim.runs.calibration import Calibration, calibration
from fedsofim.runs.directory import Row
from fedsofim.runs.observer import Observer

if TYPE_CHECKING:
    from pandas import DataFrame


def calibrate(
    config: Config | Mapping[str, Any] | None = None, **settings: Unpack[Words]
) -> Calibration:
    """The noise that keeps a budget, or with `noise_multiplier` the budget that a noise spends.

    Args:
        config: settings to begin with, see `Config`.
        **settings: every key of the command line and the short words, see `Config`.

    >>> plan = calibrate(epsilon=10, rounds=70)
    >>> round(plan.noise_multiplier, 4), plan.epsilon <= 10
    (8.3647, True)
    """
    return calibration(Config(config, **settings).checked)


class SweepResult:
    """The rows of a sweep: settings, and what they gave after each recorded round.

    Attributes:
        rows: one for each configuration and recorded round.
        varied: the names that took several values.
        path: the sweep's directory, or `None` if nothing was written.
    """

    def __init__(self, rows: list[Row], varied: list[str], path: Path | None) -> None:
        self.rows, self.varied, self.path = rows, varied, path

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def frame(self) -> "DataFrame":
        """The rows as a pandas DataFrame."""
        return frame(self.rows)

    def best(self) -> Row:
        """The settings with the highest accuracy after the last round, as a mean over seeds."""
        keys = [key for key in self.varied if key != "seed"]
        last = {tuple(row[key] for key in self.varied): row for row in self.rows}
        scores: dict[tuple[Any, ...], list[float]] = {}
        for row in last.values():
            scores.setdefault(tuple(row[key] for key in keys), []).append(row["accuracy"])
        means = {setting: float(np.mean(values)) for setting, values in scores.items()}
        setting = max(means, key=means.__getitem__)
        return {**dict(zip(keys, setting, strict=True)), "accuracy": means[setting]}

    def __repr__(self) -> str:
        return f"<sweep over {', '.join(self.varied) or 'nothing'}: {len(self)} rows>"


def sweep(
    config: Config | Mapping[str, Any] | None = None,
    *,
    data: Sequence[Any] | None = None,
    output: str | Path | None = None,
    jobs: int = 1,
    progress: bool | None = None,
    **settings: Any,
) -> SweepResult:
    """Run all combinations of settings; those that share their data in one pass over it.

    Args:
        config: settings to begin with, see `Config`.
        data: `(X, y, X_test, y_test)`, your own arrays; for as long as the sweep runs they are
            written to a temporary file.
        output: a directory to keep the results in, from which an interrupted sweep goes on.
        jobs: processes; more than one needs a script with `if __name__ == "__main__":`.
        progress: whether to tell how it goes; by default where somebody looks on.
        **settings: as for `run`; a list stands for several values: `lr=[0.1, 0.3]`.

    >>> result = sweep(strategy="fedgd", lr=[0.1, 1], rounds=2, progress=False)
    >>> [(row["strategy.lr"], row["round"]) for row in result]
    [(0.1, 2), (1.0, 2)]
    """
    from fedsofim.studies.sweep import Sweep

    base = config.settings if isinstance(config, Config) else dict(named(config or {}))
    chosen = {**base, **dict(named(settings))}
    varied = [key for key, value in chosen.items() if isinstance(value, list | tuple)]
    with tempfile.TemporaryDirectory() as folder:
        if data is not None:
            chosen |= _written(data, Path(folder) / "data.npz")
        overrides = [f"{key}={_choices(value)}" for key, value in chosen.items()]
        path = Path(folder) / "sweep" if output is None else Path(output).expanduser().resolve()
        with _counting(progress) as show:
            rows = Sweep.begin(path, overrides).run(jobs, show)
    hidden = {"dataset.path"} if data is not None else set()
    kept = [{k: v for k, v in row.items() if k not in hidden} for row in rows]
    return SweepResult(kept, varied, None if output is None else path)


def _choices(value: Any) -> str:
    if isinstance(value, list | tuple):
        require(len(value) > 0, "a list without values stands for nothing")
        return ",".join(map(text, value))
    return text(value)


def _written(data: Sequence[Any], file: Path) -> dict[str, Any]:
    """Arrays as a file, and the settings that name it."""
    given = labelled(data).dataset
    require(len(given.test_y) > 0, "data: a sweep compares scores; give (X, y, X_test, y_test)")
    train, test = (given.train_x, given.train_y), (given.test_x, given.test_y)
    np.savez(file, train_x=train[0], train_y=train[1], test_x=test[0], test_y=test[1])
    return {"dataset": "npz", "dataset.path": str(file)}


@contextmanager
def _counting(progress: bool | None) -> Iterator[Callable[[int, int], None]]:
    seen: Observer = observer_for(progress)
    try:
        yield lambda done, total: seen.watch("configurations", done, total)
    finally:
        seen.close()
