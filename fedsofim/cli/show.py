"""`fedsofim show`: a run's rounds, what it reached and what it spent."""

from collections.abc import Sequence
from pathlib import Path

from fedsofim.core.arguments import Parser

ABOUT = """A run's table of rounds, what it reached and what it spent, finished or as far as it
came; of a folder of runs, one line each. 'fedsofim report' makes a page of them."""


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim show", description=ABOUT)
    made.add_argument(
        "dir", type=Path, metavar="DIR", help="a run's directory, or a folder of them"
    )
    return made


def main(arguments: Sequence[str]) -> None:
    """Print the run, or one line for each."""
    if not arguments:
        return parser().print_help()
    path = parser().read(arguments).dir
    if (path / "config.yaml").is_file() or not path.is_dir():
        return one(path)
    from fedsofim.api.training import load
    from fedsofim.core.errors import require

    found = sorted(file.parent for file in path.rglob("config.yaml") if file.is_file())
    swept = any(path.rglob("sweep.json"))
    hint = (
        f"'fedsofim report {path}' shows its sweeps" if swept else "train one with 'fedsofim run'"
    )
    require(bool(found), f"{path}: holds no run; {hint}")
    for place in found:
        history = load(place)
        unfinished = "" if history.finished else " (not finished)"
        print(f"{place.relative_to(path)}: {repr(history)[1:-1]}{unfinished}")


def one(path: Path) -> None:
    """A run's rounds, result and cost, and how to go on with it."""
    from fedsofim.api.training import load
    from fedsofim.cli.terminal import console, table
    from fedsofim.runs.observer import conclusion

    history, out = load(path), console()
    name = {key: history.config[f"{key}.name"] for key in ("strategy", "dataset")}
    if history.rows:
        out.print(table(name, history.rows))
    if history.finished:
        for line in conclusion(history.summary, history.rows, None):
            out.print(line, soft_wrap=True, markup=False)
        out.print(f"{path}: report.html is its page, card.md its model card", soft_wrap=True)
        return
    done, rounds = len(history), history.config["rounds"]
    out.print(
        f"Not finished: {done} of {rounds} rounds. Continue with: fedsofim resume {path}",
        soft_wrap=True,
        markup=False,
    )
