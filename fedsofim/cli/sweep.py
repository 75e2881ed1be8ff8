"""`fedsofim sweep`: a grid of configurations, its progress and its best."""

import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsofim.cli.keys import keyed, take
from fedsofim.core.arguments import Parser
from fedsofim.core.errors import Stopped, require

if TYPE_CHECKING:
    from fedsofim.studies.processes import Jobs

ABOUT = """All combinations of the values, with the keys of 'fedsofim run'. Configurations that
share their data are trained together, in one pass over it a round:
  fedsofim sweep strategy.lr=0.1,0.3,1 strategy.rho=0.5,1,5 seed=0,1,2
Results go to output.dir=DIR as results.csv and results.parquet. The same command, given again with
the same output.dir, continues an interrupted sweep. On a Ray cluster: --engine ray --address
HOST:PORT."""


def parser() -> Parser:
    """Its options."""
    made = keyed("sweep", ABOUT)
    add_jobs(made)
    return made


def add_jobs(made: Parser) -> None:
    """The options that `sweep`, `tune` and `reproduce` share."""
    made.add_argument("--jobs", metavar="N", help="processes; by default one for each core")
    made.add_argument("--engine", choices=["local", "ray"], help="ray: a task for each part")
    made.add_argument("--address", metavar="HOST:PORT", help="a Ray cluster's, instead of one here")


def jobs_of(chosen: Namespace) -> "Jobs":
    """The processes that were asked for, or the cluster, if it answers."""
    given, address = chosen.jobs, chosen.address
    require(given is None or (given.isdigit() and int(given) > 0), f"--jobs {given}: a number >= 1")
    jobs, on_ray = int(given) if given else None, chosen.engine == "ray"
    require(on_ray or address is None, f"--address {address}: goes with --engine ray")
    if not on_ray:
        return jobs
    from fedsofim.engines import check
    from fedsofim.engines.cluster import Cluster

    check("ray", address)
    return Cluster(address, jobs)


def main(arguments: Sequence[str]) -> None:
    """Run a grid into a directory, and show the best."""
    chosen = parser().read(arguments)
    jobs, overrides = jobs_of(chosen), list(chosen.overrides)
    path = place(take(overrides, "output.dir"), "sweep")
    from fedsofim.cli.terminal import bar, console, say_where
    from fedsofim.studies.sweep import Sweep

    grid, began = Sweep.begin(path, overrides), time.perf_counter()
    say_where(path)
    try:
        with bar() as show:
            rows = grid.run(jobs, lambda done, total: show(completed=done, total=total))
    except KeyboardInterrupt:
        raise stopped("sweep", arguments, path) from None
    _show_best(rows, [o.split("=", 1)[0] for o in overrides if "," in o])
    seconds = time.perf_counter() - began
    console().print(f"{len(grid.values)} configurations in {seconds:.1f} s; written to {path}")


def place(given: str | None, command: str) -> Path:
    """The directory that was named, or a new one that tells when the work began."""
    now = datetime.now()
    return Path(given or f"outputs/{now:%Y-%m-%d}/{command}-{now:%H-%M-%S}")


def stopped(command: str, arguments: Sequence[str], path: Path) -> Stopped:
    """Tell how to go on where it was stopped."""
    others = [word for word in arguments if not word.startswith("output.dir=")]
    again = shlex.join(["fedsofim", command, *others, f"output.dir={path}"])
    return Stopped(f"Stopped. Go on with: {again}")


def _show_best(rows: Sequence[dict[str, Any]], varied: Sequence[str], most: int = 12) -> None:
    """The best settings after the last round, with their spread over seeds."""
    from statistics import mean, stdev

    from rich.table import Table

    from fedsofim.cli.terminal import console

    keys = [key for key in varied if key != "seed"]
    last = {tuple(row[k] for k in varied): row for row in rows}  # rounds come in order
    scores: dict[tuple[object, ...], list[float]] = {}
    for row in last.values():
        scores.setdefault(tuple(row[k] for k in keys), []).append(100 * row["accuracy"])
    table = Table(title=f"Best of {len(scores)} settings", title_justify="left")
    for name in (*keys, "accuracy %", "std", "seeds"):
        table.add_column(name, justify="right")
    for settings, values in sorted(scores.items(), key=lambda item: -mean(item[1]))[:most]:
        spread = f"{stdev(values):.2f}" if len(values) > 1 else "-"
        shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in settings]
        table.add_row(*shown, f"{mean(values):.2f}", spread, str(len(values)))
    console().print(table)
