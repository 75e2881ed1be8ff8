"""`fedsofim resume`: continue an interrupted run, or extend one."""

from collections.abc import Sequence
from pathlib import Path

from fedsofim.core.arguments import Parser
from fedsofim.core.errors import require

ABOUT = """Continue an interrupted run to the very result that it would have had.
With rounds=N or privacy.epsilon=E, extend it: what was released so far is charged, and the noise of
the rounds that remain is chosen from what is left of the budget:
  fedsofim resume outputs/2026-01-01/my-run rounds=140 privacy.epsilon=12"""


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim resume", description=ABOUT)
    made.add_argument("dir", nargs="?", type=Path, metavar="DIR", help="the run's directory")
    made.add_argument("changes", nargs="*", metavar="key=value", help="rounds, privacy.epsilon")
    return made


def main(arguments: Sequence[str]) -> None:
    """Resume one run."""
    chosen = parser().read(arguments)
    given = [change.partition("=") for change in chosen.changes]
    require(chosen.dir and all(equals for _, equals, _ in given), "resume: name one run directory")
    from omegaconf import OmegaConf

    from fedsofim.cli.terminal import Terminal
    from fedsofim.runs.session import resume

    changes = {key: OmegaConf.from_dotlist([f"x={value}"])["x"] for key, _, value in given}
    resume(chosen.dir, changes, observer=Terminal())
