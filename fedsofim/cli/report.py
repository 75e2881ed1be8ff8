"""`fedsofim report`: compare runs and sweeps on one page."""

from collections.abc import Sequence
from pathlib import Path

from fedsofim.core.arguments import Parser

ABOUT = """Compare runs and sweeps on one self-contained HTML page: accuracy by round with bands
over seeds, accuracy by epsilon, rounds to a target, what was released and what it cost. A folder is
searched for runs, as outputs with its dates; of a folder that 'fedsofim reproduce' wrote, the page
shows the paper's tables beside ours."""


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim report", description=ABOUT)
    made.add_argument(
        *("dirs",), nargs="+", type=Path, metavar="DIR",
        help="a run's directory, a sweep's, or a folder of them",
    )  # fmt: skip
    made.add_argument(
        "--out", type=Path, default=Path("report.html"), help="the page (%(default)s)"
    )
    made.add_argument(
        *("--counts",), action="store_true",
        help="who holds what, too: the simulator's knowledge, which no epsilon covers",
    )  # fmt: skip
    return made


def main(arguments: Sequence[str]) -> None:
    """Write the page."""
    if not arguments:
        return parser().print_help()
    chosen = parser().read(arguments)
    from fedsofim.reports import compare, study

    if len(chosen.dirs) == 1 and study.is_study(chosen.dirs[0]):
        study.write(chosen.dirs[0], chosen.out)
    else:
        compare.write(chosen.dirs, chosen.out, counts=chosen.counts)
    print(f"Written to {chosen.out}")
