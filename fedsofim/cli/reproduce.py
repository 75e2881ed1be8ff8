"""`fedsofim reproduce`: the paper's tables and figures, run, shown and written."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsofim.cli.sweep import add_jobs, jobs_of
from fedsofim.core.arguments import Parser
from fedsofim.core.errors import Stopped, choose, require

if TYPE_CHECKING:
    from fedsofim.reports.tables import Table

VGG = ("table5", "table6")
WHAT = (
    *("table3", "table4", "table5", "table6", "table8", "table9", "table10", "table11", "table12"),
    *("mcnemar", "partition", "figures", "all"),
)
ABOUT = """WHAT is table3, table4, table8, table9 (accuracy), table10, table11 (ablations), table12
(rho), mcnemar, partition, figures, or all; table5 and table6 with --features FILE, VGG-16's. Each
is printed beside the paper's figures and written as CSV, LaTeX and Markdown, figures as PNG and
SVG. The same command continues what was interrupted."""


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim reproduce", description=ABOUT)
    made.add_argument("what", metavar="WHAT", choices=WHAT, help="what to make")
    made.add_argument("--settings", choices=["published", "tuned"], default="published")
    made.add_argument("--seeds", default="0,1,2", help="of the runs (%(default)s)")
    made.add_argument("--features", metavar="FILE", help="VGG-16's features, for tables 5 and 6")
    made.add_argument("--out", type=Path, default=Path("outputs/reproduce"), metavar="DIR")
    add_jobs(made)
    return made


def main(arguments: Sequence[str]) -> None:
    """Make one of the paper's results, or `all` that need no features of the user's."""
    if not arguments:
        return parser().print_help()
    chosen = parser().read(arguments)
    what, seeds, out = chosen.what, chosen.seeds.split(","), chosen.out
    require(all(s.isdigit() for s in seeds), f"--seeds {chosen.seeds}: give numbers, as 0,1,2")
    require(what not in VGG or chosen.features, f"{what}: give --features FILE (VGG-16's)")
    from fedsofim.cli.terminal import bar, console
    from fedsofim.studies.paper import MAKERS
    from fedsofim.studies.reproduce import Study
    from fedsofim.studies.results import Results

    usual = [name for name in MAKERS if name not in VGG]
    extra = [f"settings={chosen.settings}"]
    extra += [f"dataset.path={chosen.features}"] if what in VGG else []
    try:
        results = Results(out / "unfinished.jsonl")  # until all are made, the finished runs
        with bar() as show:
            told = lambda done, total: show(completed=done, total=total)  # noqa: E731
            study = Study(results, extra, list(map(int, seeds)), told, jobs_of(chosen.jobs))
            for name in usual if what == "all" else [what]:
                began = time.perf_counter()
                show(description=name)
                for table in choose(MAKERS, name, "reproduce")(study, out, name):
                    _show(table)
                console().print(f"{name}: {time.perf_counter() - began:.1f} s")
    except KeyboardInterrupt:
        again = shlex.join(["fedsofim", "reproduce", *arguments])
        raise Stopped(f"Stopped. Go on with: {again}") from None
    results.forget()
    console().print(f"Written to {out}", soft_wrap=True)


MOST = 16  # columns; of a wider table the first and the last are shown, and the files have all


def _show(table: "Table") -> None:
    from rich.table import Table as RichTable

    from fedsofim.cli.terminal import console

    shown = list(range(len(table.header)))
    shown = [0, 1, 2, 3, *shown[-5:]] if len(shown) > MOST else shown
    if not console().is_terminal:  # whole, however narrow the pipe is taken to be
        console().print(table.title, soft_wrap=True, markup=False)
        for row in (table.header, *table.rows):
            cells = (f"{row[i]:>14}" for i in shown)
            console().print(" ".join(cells), soft_wrap=True, markup=False)
        return
    rich = RichTable(title=table.title, title_justify="left")
    for i in shown:
        rich.add_column(table.header[i], justify="right", no_wrap=i < 2)
    for row in table.rows:
        rich.add_row(*(row[i] for i in shown))
    console().print(rich)
