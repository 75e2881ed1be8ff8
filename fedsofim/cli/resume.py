"""`fedsofim resume`: continue an interrupted run."""

from collections.abc import Sequence
from pathlib import Path

from fedsofim.core.arguments import Parser
from fedsofim.core.errors import require

ABOUT = "Continue an interrupted run to the result that it would have had without the interruption."


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim resume", description=ABOUT)
    made.add_argument("dir", nargs="*", type=Path, metavar="DIR", help="the run's directory")
    return made


def main(arguments: Sequence[str]) -> None:
    """Resume one run."""
    chosen = parser().read(arguments)
    require(len(chosen.dir) == 1, "resume: name one run directory")
    from fedsofim.runs.session import resume

    resume(chosen.dir[0])
