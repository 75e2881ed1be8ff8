"""Training into a run directory, with progress, so that nothing is lost."""

import math
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
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from data.partition import table
from fedsofim import personal, report
from fedsofim.config import require
from fedsofim.engines import ENGINES, Run
from fedsofim.experiment import Config, Experiment, RunState, begin, parse, prepare
from fedsofim.features_command import watching
from fedsofim.linalg import Array
from fedsofim.rundir import Row, RunDir, finite

console = Console(highlight=False)


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
    experiment = experiment or _prepare(parse(values))
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
    experiment = experiment or _prepare(parse(place.config()))
    config = experiment.config
    require(
        place.read_json("partition.json") == experiment.partition,
        f"dataset={config.dataset.name}: the data, or its division, has changed since {path} "
        "was started",
    )
    state = place.restore(begin(experiment))
    place.rewind(state.server.t)
    return _train(experiment, state, place, engine)


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


def _train(experiment: Experiment, state: RunState, place: RunDir, engine: Run | None) -> RunDir:
    config = experiment.config
    train = engine or ENGINES[config.engine.name]
    _announce(config, experiment)
    if "counts" in experiment.partition:
        place.write("partition.svg", report.heat_map_of(experiment.partition).encode())
        place.write("partition.csv", table(experiment.partition).encode())
    rows = place.metrics()
    before = rows[-1]["seconds"] if rows else 0.0
    began = time.perf_counter()
    latest = saved = state
    # Parameters that diverge become infinite: the metrics and the closing lines tell.
    quiet = np.errstate(over="ignore", invalid="ignore")
    with quiet, _stop_requests() as stop, _progress(config.rounds) as show:

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


def measure(experiment: Experiment, state: RunState, G: Array | None, seconds: float) -> Row:
    """One row of the metrics; all from released values and the server's own test set.

    Where clients have models of their own, the scores are those of the mean client on its own test
    set, which only a simulation knows; a deployment does not score them.
    """
    config, theta, t = experiment.config, state.server.theta, state.server.t
    scores: Row = {"accuracy": None, "loss": math.nan}
    if experiment.own_tests:
        scores = personal.summarise(_personal_scores(experiment, state))
    elif experiment.test.size and not config.client.keeps_models:
        scores = dict(zip(("accuracy", "loss"), experiment.test.evaluate(theta), strict=True))
    return {
        "round": t,
        **scores,
        "loss": finite(scores["loss"]),
        "epsilon": finite(config.epsilon(t)),
        "gradient_norm": None if G is None else finite(float(np.linalg.norm(G))),
        "noise_norm": noise_norm(experiment, t - 1),
        "theta_norm": finite(float(np.linalg.norm(theta))),
        "seconds": round(seconds, 6),
    }


def noise_norm(experiment: Experiment, t: int) -> float | None:
    """The norm that the noise in the aggregate of round `t` is expected to have, where it is known.

    Each of n clients adds noise of std s to its sum: the mean of the releases then carries
    s sqrt(sum 1/|D_i|^2) / n in each coordinate, the mean by size s sqrt(n) / sum |D_i|.
    """
    config, plan = experiment.config, experiment.plan
    gain = config.client.noise_gain
    if gain is None or not experiment.clients or not plan.noise_multiplier:
        return None
    sizes = np.array([experiment.clients[i].data.size for i in config.schedule.present(t)], float)
    uniform = math.sqrt((1 / sizes**2).sum()) / len(sizes)
    factor = uniform if config.aggregation == "uniform" else math.sqrt(len(sizes)) / sizes.sum()
    std = gain * plan.client_noise_multiplier * plan.clip
    return std * factor * math.sqrt(experiment.theta.size)


def _personal_models(experiment: Experiment, state: RunState) -> Array:
    program, theta = experiment.config.client, state.server.theta
    return program.personal(theta, experiment.clients, state.clients)


def _personal_scores(experiment: Experiment, state: RunState) -> personal.Scores:
    return personal.score(_personal_models(experiment, state), experiment.own_tests)


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
    own: list[Row] = []
    if experiment.own_tests:
        scores = _personal_scores(experiment, state)
        own = personal.table(scores, experiment.partition, experiment.own_tests)
        place.write_json("personal.json", own)
        place.write_arrays("personal.npz", theta=_personal_models(experiment, state))
    known = "counts" in experiment.partition  # not in a deployment: class counts stay with owners
    picture = report.heat_map_of(experiment.partition) if known else ""
    text = (place.path / "config.yaml").read_text()
    command = place.path / "command.txt"
    told = command.read_text() if command.is_file() else ""
    page = report.render(text, summary, rows, picture, own, told)
    place.write("report.html", page.encode())
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
    if plan.releases == 0:
        console.print("nothing is sent: epsilon 0 for every record, without noise")
        return
    if not config.private:
        why = "no noise is added"
        if config.transform.source == "private":
            why = f"transform={config.transform.name} reads private records, unprotected"
        console.print(f"[bold white on red] NOT PRIVATE [/] {why}: anything may leak.")
        return
    if config.schedule.size < n:
        console.print(
            f"{config.schedule.size} clients a round; a record is charged for at most "
            f"{config.schedule.busiest(config.rounds)} of the rounds, its client's"
        )
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
        cells = (_percent(row), loss, epsilon, f"{row['seconds']:.2f}")
        table.add_row(str(row["round"]), *cells)
    console.print(table)
    if "accuracy_std" in summary:
        console.print(
            f"over {summary['clients']} clients, each with its own model and test set: accuracy "
            f"{100 * summary['accuracy']:.2f} ± {100 * summary['accuracy_std']:.2f} %, "
            f"worst decile {100 * summary['accuracy_worst_decile']:.2f} %"
        )
    if summary["epsilon"] is not None:
        console.print(
            f"spent: epsilon {summary['epsilon']:.6g} at delta {summary['delta']:g}; "
            f"noise multiplier {summary['noise_multiplier']:.4g}, std {summary['noise_std']:.4g}"
        )


def _percent(row: Row) -> str:
    """The accuracy of a round, or a dash where the server has no test set."""
    return "-" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f}"


@contextmanager
def _progress(rounds: int) -> Iterator[Any]:
    """A bar on a terminal, otherwise a line now and then."""
    if not console.is_terminal:

        def line(row: Row) -> None:
            if row["round"] % max(1, rounds // 7) == 0 or row["round"] == rounds:
                console.print(f"round {row['round']} of {rounds}: accuracy {_percent(row)} %")

        yield line
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=rounds)

        def bar(row: Row) -> None:
            accuracy = f"accuracy {_percent(row)} %"
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
    if threading.current_thread() is not threading.main_thread():
        yield stop  # under 'flwr run' signals are Flower's
        return
    previous = {s: signal.signal(s, stop.request) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
