"""Training into a run directory, with progress, so that nothing is lost."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from fedsofim.cli.features import watching
from fedsofim.cli.terminal import announce, console, progress, show_result
from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.data.partition import table
from fedsofim.engines import ENGINES, Run
from fedsofim.reports import run_page as report
from fedsofim.runs import personal_tests as personal
from fedsofim.runs.directory import Row, RunDir, finite
from fedsofim.runs.evaluation import measure, personal_models, personal_scores
from fedsofim.runs.experiment import Experiment, RunState, begin, prepare


def run(
    values: Mapping[str, Any],
    directory: Path | None = None,
    *,
    command: str | None = None,
    experiment: Experiment | None = None,
    engine: Run | None = None,
) -> RunDir:
    """Start a run from its plain config, and train it to the end or the first Ctrl-C.

    Args:
        values: the config.
        directory: where the run is written; by default where the config says.
        command: what would start the same run again.
        experiment: the run made ready, when it is not to be prepared from the config's data.
        engine: what moves the arrays; by default the one that the config names.
    """
    experiment = experiment or _prepare(parse(values), engine)
    config, state = experiment.config, begin(experiment)
    chosen = Path(config.output.dir) if config.output.dir else None
    path = directory or chosen or _unused(Path(config.output.root), config.name)
    place = RunDir.create(path, values, experiment.partition, state)
    if command:
        place.write("command.txt", f"{command}\n".encode())
    return _train(experiment, state, place, engine)


def resume(
    path: Path, *, experiment: Experiment | None = None, engine: Run | None = None
) -> RunDir:
    """Continue an interrupted run to the same result that it would have had."""
    place = RunDir.open(path)
    experiment = experiment or _prepare(parse(place.config()), engine)
    config = experiment.config
    require(
        place.read_json("partition.json") == experiment.partition,
        f"dataset={config.dataset.name}: the data, or its division, has changed since {path} "
        "was started",
    )
    state = place.restore(begin(experiment))
    place.rewind(state.server.t)
    return _train(experiment, state, place, engine)


def _prepare(config: Config, engine: Run | None) -> Experiment:
    require(
        engine is not None or config.engine.name in ENGINES,
        "engine=flower: is what 'flwr run' uses; start with flwr run . --run-config "
        "'overrides=\"...\"', continue with flwr run . --run-config 'resume=\"DIR\"', "
        "or choose engine=ray",
    )
    with watching(console) as watch:
        config.extraction.file(watch)
    return prepare(config)


def _unused(root: Path, name: str) -> Path:
    """`root/<date>/<name>`, or with a number behind it if that exists."""
    day = root / date.today().isoformat()
    number = 1
    while (path := day / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path


def _train(experiment: Experiment, state: RunState, place: RunDir, engine: Run | None) -> RunDir:
    config = experiment.config
    train = engine or ENGINES[config.engine.name]
    announce(config, experiment)
    if config.output.counts and "counts" in experiment.partition:
        place.write("partition.svg", report.heat_map_of(experiment.partition).encode())
        place.write("partition.csv", table(experiment.partition).encode())
    rows = place.metrics()
    before = rows[-1]["seconds"] if rows else 0.0
    began = time.perf_counter()
    latest = saved = state
    # Parameters that diverge become infinite: the metrics and the closing lines tell.
    quiet = np.errstate(over="ignore", invalid="ignore")
    with quiet, _stop_requests() as stop, progress(config.rounds) as show:

        def on_round(now: RunState, G: Array | None, **notes: Any) -> bool:
            nonlocal latest, saved
            seconds = before + time.perf_counter() - began
            rows.append(measure(experiment, now, G, seconds) | notes)
            place.append(rows[-1])
            show(rows[-1])
            latest = now
            if stop.requested or now.server.t % experiment.checkpoint_every == 0:
                place.checkpoint(now)
                saved = now
            return stop.requested

        try:
            latest = train(experiment, state, on_round)
        finally:
            if latest is not saved:
                place.checkpoint(latest)
    if stop.requested and latest.server.t < config.rounds:
        console.print(
            f"Stopped after round {latest.server.t} of {config.rounds}. "
            f"Continue with: fedsofim resume {place.path}",
            soft_wrap=True,
            markup=False,
        )
        sys.exit(130)
    require(bool(rows), "no round was completed")
    _finish(experiment, latest, place, rows)
    return place


def _finish(experiment: Experiment, state: RunState, place: RunDir, rows: list[Row]) -> None:
    """Write what a finished run leaves, and show it."""
    config, plan, last = experiment.config, experiment.plan, rows[-1]
    summary: Row = {
        "strategy": config.strategy_name,
        "transform": config.transform.name,
        "model": config.model.name,
        "dataset": config.dataset.name,
        "accuracy": last["accuracy"],
        "loss": last["loss"],
        **{key: value for key, value in last.items() if key.startswith("accuracy_")},
        "epsilon": last["epsilon"],
        "delta": plan.delta if config.private else None,
        "noise_multiplier": plan.noise_multiplier,
        "noise_std": plan.noise_std,
        "releases": plan.releases,
        "clip": finite(plan.clip),
        "adjacency": config.privacy.adjacency,
        "trust": config.privacy.trust,
        "aggregation": config.aggregation,
        "clients": config.partition.clients,
        "participation": config.participation,
        "rounds": state.server.t,
        "seed": config.seed,
        "seconds": last["seconds"],
    }
    place.write_arrays("model.npz", theta=state.server.theta)
    if experiment.own_tests:
        scores = personal_scores(experiment, state)
        own = personal.table(scores, experiment.partition, experiment.own_tests)
        place.write_json("personal.json", own)
        place.write_arrays("personal.npz", theta=personal_models(experiment, state))
    place.write_json("summary.json", summary)
    place.write("report.html", report.page_of(place).encode())
    show_result(summary, rows)
    if last["theta_norm"] is None or (last["accuracy"] is not None and last["loss"] is None):
        console.print(
            "[bold white on red] DIVERGED [/] lower strategy.lr, or ask for less privacy."
        )
    console.print(f"Written to {place.path}", soft_wrap=True, markup=False)


class _Stop:
    """Whether a stop was requested; a second request stops at once."""

    requested = False

    def request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def _stop_requests() -> Iterator[_Stop]:
    """Turn Ctrl-C and a polite kill into a stop after the round that is under way."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # under 'flwr run' signals are Flower's
        return
    previous = {s: signal.signal(s, stop.request) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
