"""What a person sees while something runs, and after it."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedsofim.config.schema import Config
from fedsofim.runs.directory import Row
from fedsofim.runs.experiment import Experiment

console = Console(highlight=False)


@contextmanager
def bar() -> Iterator[Callable[..., None]]:
    """A progress bar that goes when it is done; told `completed`, `total` and `description`."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("")
        yield lambda **told: progress.update(task, **told)


def say_where(path: Path) -> None:
    """Say before long work where it is kept, so that it can go on after an interruption."""
    console.print(f"Into {path}; if interrupted, go on with output.dir={path}", soft_wrap=True)


def announce(config: Config, experiment: Experiment) -> None:
    """Say what is about to be run, and what it promises."""
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
    if doubt := config.privacy.doubt(sum(experiment.partition.get("sizes", []))):
        console.print(f"[bold white on red] WEAK PROMISE [/] {doubt}")


def show_result(summary: Row, rows: list[Row]) -> None:
    """The closing table, and what was spent."""
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
def progress(rounds: int) -> Iterator[Callable[[Row], None]]:
    """A bar on a terminal, otherwise a line now and then."""
    if not console.is_terminal:

        def line(row: Row) -> None:
            if row["round"] % max(1, rounds // 7) == 0 or row["round"] == rounds:
                console.print(f"round {row['round']} of {rounds}: accuracy {_percent(row)} %")

        yield line
        return
    with bar() as show:
        yield lambda row: show(
            completed=row["round"], total=rounds, description=f"accuracy {_percent(row)} %"
        )
