"""Runs in the trackers that people use: `track=tensorboard,mlflow,wandb`, or a class of one's own.

What a tracker is told may leave this machine, so it is told what epsilon covers: the rows of
`metrics.jsonl` and the summary, without the seed, paths and the scores of single clients. Personal
models are scored on what their clients hold, so of those no score is told at all.
"""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedsofim.core.errors import ConfigError, options, require
from fedsofim.core.loading import load_object
from fedsofim.runs.directory import Row
from fedsofim.runs.experiment import Experiment
from fedsofim.runs.observer import Observer
from fedsofim.runs.record import dotted

# Keys of a config that say nothing about a method, or too much about a run.
KEPT_BACK = (
    *("seed", "output.", "track", "dataset.path", "dataset.root", "dataset.schema"),
    *("dataset.test", "features.cache", "backbone.weights"),
)
# What is told even where every score is one of clients' own records.
NO_SCORE = ("epsilon", "delta", "gradient_norm", "noise_norm", "seconds")


class Tracker:
    """What a run is told to; derive from it, and name yours as `track=my.module:Mine`."""

    def begin(self, name: str, config: Mapping[str, Any], directory: Path) -> None:
        """A run begins, or goes on.

        Args:
            name: of the run.
            config: its settings, by dotted name.
            directory: where it is written; files of the tracker's own may go there.
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The measures of a round."""

    def end(self, summary: Mapping[str, float]) -> None:
        """The run is over; without a summary if it was interrupted."""


class TensorBoard(Tracker):
    """Event files in the run's folder `tensorboard`."""

    def begin(self, name: str, config: Mapping[str, Any], directory: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(directory / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        import time

        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        told = [Summary.Value(tag=name, simple_value=v) for name, v in values.items()]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=told))
        self._writer.add_event(event)

    def end(self, summary: Mapping[str, float]) -> None:
        self._writer.close()


class MLflow(Tracker):
    """A run of the experiment `fedsofim`, in `mlflow.db` beside it or at MLFLOW_TRACKING_URI."""

    def begin(self, name: str, config: Mapping[str, Any], directory: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        own = f"sqlite:///{(directory.parent / 'mlflow.db').resolve()}"
        self._client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or own)
        known = self._client.get_experiment_by_name("fedsofim")
        place = known.experiment_id if known else self._client.create_experiment("fedsofim")
        self._run = self._client.create_run(place, run_name=name).info.run_id
        for key, value in config.items():
            self._client.log_param(self._run, key, str(value)[:500])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def end(self, summary: Mapping[str, float]) -> None:
        for name, value in summary.items():
            self._client.log_metric(self._run, f"final.{name}", value)
        self._client.set_terminated(self._run, "FINISHED" if summary else "KILLED")


class WandB(Tracker):
    """A run of the project `fedsofim`, offline in its folder `wandb` unless WANDB_MODE says."""

    def begin(self, name: str, config: Mapping[str, Any], directory: Path) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True)
        self._run = wandb.init(
            project="fedsofim",
            name=name,
            config=dict(config),
            dir=str(directory),
            mode=mode,
            settings=quiet,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def end(self, summary: Mapping[str, float]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=0 if summary else 1)


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def trackers(track: str | None) -> list[Tracker]:
    """The trackers that a config names, separated by commas.

    >>> [type(one).__name__ for one in trackers("")]
    []
    """
    return [_named(name.strip()) for name in (track or "").split(",") if name.strip()]


def _named(name: str) -> Tracker:
    if name in TRACKERS:
        missing = find_spec(name) is None
        require(not missing, f"track={name}: is not installed: pip install 'fedsofim[{name}]'")
        return TRACKERS[name]()
    known = f"give package.module:Name, or {options(TRACKERS, name)}"
    require(":" in name, f"track={name}: unknown; {known}")
    found = load_object(name, "track")
    if not (isinstance(found, type) and issubclass(found, Tracker)):
        raise ConfigError(f"track={name}: must derive from fedsofim.runs.tracking.Tracker")
    return found()


class Tracked(Observer):
    """An observer that passes all on to another, and what trackers may know to them."""

    def __init__(self, inner: Observer, told: Sequence[Tracker], directory: Path) -> None:
        self._inner, self._told, self._directory = inner, told, directory
        self._begun = self._ended = self._personal = False

    def announce(self, experiment: Experiment, epsilon: float, done: int) -> None:
        import json

        values = dict(dotted(json.loads(experiment.config.text or "{}")))
        shown = {k: v for k, v in values.items() if not k.startswith(KEPT_BACK)}
        for one in self._told:
            one.begin(self._directory.name, shown, self._directory)
        self._begun, self._personal = True, bool(experiment.own_tests)
        self._inner.announce(experiment, epsilon, done)

    def round(self, row: Row) -> None:
        for one in self._told:
            one.log(row["round"], self._known(row))
        self._inner.round(row)

    def result(self, summary: Row, rows: list[Row], path: Path | None) -> None:
        self._end(self._known(summary))
        self._inner.result(summary, rows, path)

    def _known(self, row: Row) -> dict[str, float]:
        told = numbers(row)
        return {k: v for k, v in told.items() if k in NO_SCORE} if self._personal else told

    def close(self) -> None:
        self._end({})
        self._inner.close()

    def _end(self, summary: Mapping[str, float]) -> None:
        if self._begun and not self._ended:
            self._ended = True
            for one in self._told:
                one.end(summary)


def numbers(row: Row) -> dict[str, float]:
    """What a tracker is told of a row: numbers, without the seed and single clients' scores.

    >>> numbers({"round": 3, "accuracy": 0.5, "seed": 7, "client_accuracy": 0.4, "loss": None})
    {'accuracy': 0.5}
    """
    return {
        key: float(value)
        for key, value in row.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and not key.startswith(("seed", "client_accuracy", "round"))
    }
