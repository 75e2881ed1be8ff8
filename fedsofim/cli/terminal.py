"""What a person sees on a terminal while something runs, and after it."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text as Styled

from fedsofim.data.download import EXTRACTING, Watch
from fedsofim.runs.directory import Row
from fedsofim.runs.experiment import Experiment
from fedsofim.runs.observer import ALARMS, Text, conclusion, percent, score

EVERY = 5.0  # seconds between lines where there is no terminal


def console() -> Console:
    """Where to speak to a person: the standard output of the moment."""
    return Console(highlight=False)


@contextmanager
def bar(out: Console | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar that goes when it is done; told `completed`, `total` and `description`."""
    out = out or console()
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    left = TimeRemainingColumn()
    quiet = not out.is_terminal
    with Progress(*columns, left, console=out, transient=True, disable=quiet) as progress:
        task = progress.add_task("", total=None)
        yield lambda **told: progress.update(task, **told)


@contextmanager
def watching(out: Console) -> Iterator[Watch]:
    """Show downloads and extractions: a bar on a terminal, otherwise a line now and then."""
    began: dict[str, float] = {}
    told = time.monotonic()
    with bar(out) as show:

        def watch(what: str, done: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            began.setdefault(what, now)
            show(description=what, completed=done, total=total or None)
            if not out.is_terminal and now - told > EVERY:
                out.print(f"{what}: {done:,} of {total:,}")
                told = now
            if what.startswith(EXTRACTING) and done == total:
                # the rate, for whoever plans a larger set
                rate = total / max(now - began[what], 1e-9)
                where = what.removeprefix(EXTRACTING)
                took = f"{now - began[what]:.1f} s{where}"
                out.print(f"{total:,} images in {took}: {rate:,.0f} a second")

        yield watch


def say_where(path: Path) -> None:
    """Say before long work where it is kept, so that it can go on after an interruption."""
    console().print(f"Into {path}; if interrupted, go on with output.dir={path}", soft_wrap=True)


class Terminal(Text):
    """A bar while a run trains and a table after it; plain lines where there is no terminal."""

    def __init__(self, out: Console | None = None) -> None:
        super().__init__()
        self.console = out or console()
        self._open = ExitStack()
        self._watch: Watch | None = None
        self._show: Callable[..., None] | None = None

    def say(self, line: str) -> None:
        text = Styled(line)
        for alarm in ALARMS:
            if line.startswith(alarm):
                text = Styled.assemble((f" {alarm} ", "bold white on red"), line[len(alarm) :])
        self.console.print(text, soft_wrap=True)

    def watch(self, what: str, done: int, total: int) -> None:
        if self._watch is None:
            self._watch = self._open.enter_context(watching(self.console))
        self._watch(what, done, total)

    def announce(self, experiment: Experiment, epsilon: float, done: int) -> None:
        self.close()
        super().announce(experiment, epsilon, done)
        if self._show is not None:
            self._show(completed=done, refresh=True)  # before the first round is done

    def _tell(self, line: str) -> None:
        if not self.console.is_terminal:
            self.say(line)
            return
        if self._show is None:
            self._show = self._open.enter_context(bar(self.console))
            self._show(total=self._rounds)
        self._show(description=line)

    def round(self, row: Row) -> None:
        if self._show is None:
            super().round(row)
            return
        self._show(completed=row["round"], description=score(row).lstrip(": "))

    def result(self, summary: Row, rows: list[Row], path: Path | None) -> None:
        self.close()
        self.console.print(table(summary, rows))
        for line in conclusion(summary, rows, path):
            self.say(line)

    def close(self) -> None:
        self._open.close()
        self._watch = self._show = None


def table(summary: Row, rows: list[Row]) -> Table:
    """The rounds of a finished run, those of many in steps."""
    every = max(1, math.ceil(len(rows) / 70)) * 10
    shown = [row for row in rows if row["round"] % every == 0 or row is rows[-1]]
    out = Table(title=f"{summary['strategy']} on {summary['dataset']}", title_justify="left")
    for name in ("round", "accuracy %", "loss", "epsilon", "seconds"):
        out.add_column(name, justify="right")
    for row in shown:
        epsilon = "none" if row["epsilon"] is None else f"{row['epsilon']:.4g}"
        loss = "-" if row["loss"] is None else f"{row['loss']:.3f}"
        out.add_row(str(row["round"]), percent(row), loss, epsilon, f"{row['seconds']:.2f}")
    return out
