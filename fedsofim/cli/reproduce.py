"""`fedsofim reproduce`: the paper's tables and figures, run, shown and written."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsofim.cli.sweep import add_jobs, jobs_of
from fedsofim.core.arguments import Parser
from fedsofim.core.errors import Stopped, require
from fedsofim.core.files import alone
from fedsofim.studies.contents import makeable

if TYPE_CHECKING:
    from fedsofim.reports.tables import Table

ABOUT = """WHAT is one of the paper's tables or figures, by its number, or all of them:
  table3 to table6, table8, table9    accuracy, with the gaps to DP-FedGD
  table7                              seconds a round, and memory
  table10, table11, table12           ablations, and rho
  table13, table14                    who holds what
  table15, table16                    McNemar's test
  figure1 to figure8                  accuracy by round, and ablations
  rounds                              rounds to 95 % of DP-FedGD's final accuracy
  frontier                            accuracy against epsilon
  choices                             what text and code disagree about, and its worth
Each is shown beside the paper's figures and written as CSV, LaTeX and Markdown, figures as PNG and
SVG, all of it with a page, report.html. The same command continues what was interrupted."""


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim reproduce", description=ABOUT)
    made.add_argument("what", metavar="WHAT", choices=(*makeable(), "all"), help="what to make")
    made.add_argument("--settings", choices=["published", "tuned"], default="published")
    made.add_argument("--seeds", default="0,1,2", help="of the runs (%(default)s)")
    made.add_argument("--out", type=Path, default=Path("outputs/reproduce"), metavar="DIR")
    add_jobs(made)
    return made


def main(arguments: Sequence[str]) -> None:
    """Make one of the paper's results, or all of them."""
    if not arguments:
        return parser().print_help()
    chosen = parser().read(arguments)
    what, seeds, out, jobs = chosen.what, chosen.seeds.split(","), chosen.out, jobs_of(chosen)
    require(all(s.isdigit() for s in seeds), f"--seeds {chosen.seeds}: give numbers, as 0,1,2")
    from fedsofim.cli.terminal import bar, console
    from fedsofim.studies.paper import MAKERS
    from fedsofim.studies.reproduce import Study
    from fedsofim.studies.results import Results

    if what == "all" or what.startswith(("figure", "frontier")):
        from fedsofim.reports.figures import need_pictures

        need_pictures()  # before minutes of training
    extra = [f"settings={chosen.settings}"]
    try:
        results = Results(out / "unfinished.jsonl")  # until all are made, the finished runs
        out.mkdir(parents=True, exist_ok=True)
        with alone(out), bar() as show:
            told = lambda done, total: show(completed=done, total=total)  # noqa: E731
            study = Study(results, extra, list(map(int, seeds)), told, jobs)
            for name in makeable() if what == "all" else [what]:
                began = time.perf_counter()
                show(description=name)
                for table in MAKERS[name](study, out):
                    _show(table)
                console().print(f"{name}: {time.perf_counter() - began:.1f} s")
    except KeyboardInterrupt:
        again = shlex.join(["fedsofim", "reproduce", *arguments])
        raise Stopped(f"Stopped. Go on with: {again}") from None
    results.forget()
    from fedsofim.reports import study as pages

    if pages.is_study(out):
        pages.write(out, out / "report.html", shlex.join(["fedsofim", "reproduce", *arguments]))
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
