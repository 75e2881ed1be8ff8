"""`fedsofim sweep`: a grid of configurations, its progress and its best."""

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from fedsofim.cli.terminal import bar, console, say_where
from fedsofim.runs.directory import Row
from fedsofim.studies.sweep import Sweep


def sweep(overrides: Sequence[str], directory: str | None, jobs: int | None) -> Path:
    """Run a grid into a directory, show the best, and give the directory."""
    now = datetime.now()
    path = Path(directory or f"outputs/{now:%Y-%m-%d}/sweep-{now:%H-%M-%S}")
    grid, began = Sweep.begin(path, overrides), time.perf_counter()
    say_where(path)
    with bar() as show:
        rows = grid.run(jobs, lambda done, total: show(completed=done, total=total))
    _show_best(rows, [o.split("=", 1)[0] for o in overrides if "," in o])
    seconds = time.perf_counter() - began
    console().print(f"{len(grid.values)} configurations in {seconds:.1f} s; written to {path}")
    return path


def _show_best(rows: Sequence[Row], varied: Sequence[str], most: int = 12) -> None:
    """The best settings after the last round, with their spread over seeds."""
    keys = [key for key in varied if key != "seed"]
    last = {tuple(row[k] for k in varied): row for row in rows}  # rounds come in order
    scores: dict[tuple[Any, ...], list[float]] = {}
    for row in last.values():
        scores.setdefault(tuple(row[k] for k in keys), []).append(100 * row["accuracy"])
    table = Table(title=f"Best of {len(scores)} settings", title_justify="left")
    for name in (*keys, "accuracy %", "std", "seeds"):
        table.add_column(name, justify="right")
    for settings, values in sorted(scores.items(), key=lambda item: -mean(item[1]))[:most]:
        spread = f"{stdev(values):.2f}" if len(values) > 1 else "-"
        shown = [f"{value:g}" if isinstance(value, float) else value for value in settings]
        table.add_row(*shown, f"{mean(values):.2f}", spread, str(len(values)))
    console().print(table)
