"""Training into a run directory, with progress, so that nothing is lost."""

import math
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from data.partition import table
from fedsofim import report
from fedsofim.config import require
from fedsofim.engines import ENGINES
from fedsofim.experiment import Config, Experiment, RunState, begin, parse, prepare
from fedsofim.features_command import watching
from fedsofim.linalg import Array
from fedsofim.rundir import Row, RunDir, finite

console = Console(highlight=False)


def run(values: Mapping[str, Any], directory: Path | None = None) -> RunDir:
    """Start a run from its plain config, and train it to the end or the first Ctrl-C."""
    config = parse(values)
    experiment = _prepare(config)
    state = begin(experiment)
    chosen = Path(config.output.dir) if config.output.dir else None
    path = directory or chosen or _unused(Path(config.output.root), config.name)
    place = RunDir.create(path, values, experiment.partition, state)
    return _train(experiment, state, place)


def resume(path: Path) -> RunDir:
    """Continue an interrupted run to the same result that it would have had."""
    place = RunDir.open(path)
    config = parse(place.config())
    experiment = _prepare(config)
    require(
        place.read_json("partition.json") == experiment.partition,
        f"dataset={config.dataset.name}: the data, or their division, have changed since {path} "
        "was started",
    )
    state = place.restore(begin(experiment))
    place.rewind(state.server.t)
    return _train(experiment, state, place)


def _prepare(config: Config) -> Experiment:
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


def _train(experiment: Experiment, state: RunState, place: RunDir) -> RunDir:
    config = experiment.config
    _announce(config, experiment)
    place.write("partition.svg", report.heat_map_of(experiment.partition).encode())
    place.write("partition.csv", table(experiment.partition).encode())
    rows = place.metrics()
    before = rows[-1]["seconds"] if rows else 0.0
    began = time.perf_counter()
    # Parameters that diverge become infinite: the metrics and the closing lines tell.
    quiet = np.errstate(over="ignore", invalid="ignore")
    with quiet, _stop_requests() as stop, _progress(config.rounds) as show:

        def on_round(now: RunState, G: Array) -> bool:
            seconds = before + time.perf_counter() - began
            rows.append(measure(experiment, now, G, seconds))
            place.append(rows[-1])
            show(rows[-1])
            last = stop.requested or now.server.t == config.rounds
            if last or now.server.t % config.output.checkpoint_every == 0:
                place.checkpoint(now)
            return stop.requested

        state = ENGINES[config.engine.name](experiment, state, on_round)
    if state.server.t < config.rounds:
        console.print(
            f"Stopped after round {state.server.t} of {config.rounds}. "
            f"Continue with: fedsofim resume {place.path}",
            soft_wrap=True,
            markup=False,
        )
        sys.exit(130)
    _finish(experiment, state, place, rows)
    return place


def measure(experiment: Experiment, state: RunState, G: Array, seconds: float) -> Row:
    """One row of the metrics; all from released values and the server's own test set."""
    config, theta, t = experiment.config, state.server.theta, state.server.t
    accuracy, loss = experiment.test.evaluate(theta)
    return {
        "round": t,
        "accuracy": accuracy,
        "loss": finite(loss),
        "epsilon": finite(config.epsilon(t)),
        "gradient_norm": finite(float(np.linalg.norm(G))),
        "theta_norm": finite(float(np.linalg.norm(theta))),
        "seconds": round(seconds, 6),
    }


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
        "rounds": config.rounds,
        "seed": config.seed,
        "seconds": last["seconds"],
    }
    place.write_arrays("model.npz", theta=state.server.theta)
    picture = report.heat_map_of(experiment.partition)
    text = (place.path / "config.yaml").read_text()
    place.write("report.html", report.render(text, summary, rows, picture).encode())
    place.write_json("summary.json", summary)
    _show_result(summary, rows)
    if last["loss"] is None:
        console.print(
            "[bold white on red] DIVERGED [/] lower strategy.lr, or ask for less privacy."
        )
    console.print(f"Written to {place.path}", soft_wrap=True, markup=False)


def _announce(config: Config, experiment: Experiment) -> None:
    plan, n = experiment.plan, config.partition.clients
    console.print(
        f"[bold]{config.strategy_name}[/] on {config.dataset.name}: {n} clients "
        f"({config.partition.kind}), {config.rounds} rounds, {experiment.theta.size} parameters"
    )
    if not config.private:
        why = "no noise is added"
        if config.transform.source == "private":
            why = f"transform={config.transform.name} reads private records, unprotected"
        console.print(f"[bold white on red] NOT PRIVATE [/] {why}: anything may leak.")
        return
    console.print(
        f"epsilon {config.epsilon():.6g} at delta {plan.delta:g} for one record "
        f"({config.privacy.adjacency}); noise multiplier {plan.noise_multiplier:.4g}, "
        f"std {plan.noise_std:.4g} on a sum clipped at {plan.clip:g}; trust {config.privacy.trust}"
    )


def _show_result(summary: Row, rows: list[Row]) -> None:
    every = max(1, math.ceil(len(rows) / 70)) * 10
    shown = [row for row in rows if row["round"] % every == 0 or row is rows[-1]]
    table = Table(title=f"{summary['strategy']} on {summary['dataset']}", title_justify="left")
    for name in ("round", "accuracy %", "loss", "epsilon", "seconds"):
        table.add_column(name, justify="right")
    for row in shown:
        epsilon = "none" if row["epsilon"] is None else f"{row['epsilon']:.4g}"
        loss = "-" if row["loss"] is None else f"{row['loss']:.3f}"
        cells = (f"{100 * row['accuracy']:.2f}", loss, epsilon, f"{row['seconds']:.2f}")
        table.add_row(str(row["round"]), *cells)
    console.print(table)
    if summary["epsilon"] is not None:
        console.print(
            f"spent: epsilon {summary['epsilon']:.6g} at delta {summary['delta']:g}; "
            f"noise multiplier {summary['noise_multiplier']:.4g}, std {summary['noise_std']:.4g}"
        )


@contextmanager
def _progress(rounds: int) -> Iterator[Any]:
    """A bar on a terminal, otherwise a line now and then."""
    if not console.is_terminal:

        def line(row: Row) -> None:
            if row["round"] % max(1, rounds // 7) == 0:
                accuracy = f"{100 * row['accuracy']:.2f} %"
                console.print(f"round {row['round']} of {rounds}: accuracy {accuracy}")

        yield line
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=rounds)

        def bar(row: Row) -> None:
            accuracy = f"accuracy {100 * row['accuracy']:.2f} %"
            progress.update(task, completed=row["round"], description=accuracy)

        yield bar


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
    previous = {s: signal.signal(s, stop.request) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
