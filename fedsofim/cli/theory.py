"""`fedsofim theory`: bound and run together, of simulations that measured the paper's theory."""

from collections.abc import Sequence
from pathlib import Path

from fedsofim.core.arguments import Parser

ABOUT = """Put what the paper proves beside what simulations did: constants, error floors and bounds
of runs that were made with output.theory=true, as text and, with --out, as a picture. Not private:
it rests on gradients without clip and noise."""


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim theory", description=ABOUT)
    made.add_argument(
        *("dirs",), nargs="+", type=Path, metavar="DIR", help="a run made with output.theory=true"
    )
    made.add_argument("--out", type=Path, metavar="FILE.svg", help="the picture to write")
    return made


def main(arguments: Sequence[str]) -> None:
    """Tell, and draw."""
    if not arguments:
        return parser().print_help()
    chosen = parser().read(arguments)
    from fedsofim.reports.theory import figure, lines, read

    runs = [read(path) for path in chosen.dirs]
    for run in runs:
        print("\n".join(lines(run)))
    if chosen.out:
        chosen.out.write_text(figure(runs))
        print(f"Written to {chosen.out}")
