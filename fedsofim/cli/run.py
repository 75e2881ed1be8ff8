"""`fedsofim run`: train from a config, or from each of several."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from fedsofim.cli.keys import keyed
from fedsofim.core.arguments import Parser


def parser() -> Parser:
    """Its options; the page that `--help` shows comes from the configs themselves."""
    made = keyed("run", "Train privately, in a federation.", add_help=False)
    made.add_argument("-h", "--help", action="store_true", help="all keys and their meanings")
    made.add_argument("-m", "--multirun", action="store_true", help="run all combinations")
    made.add_argument("--cfg", choices=["job"], help="show the config, and do not run")
    made.add_argument("--resolve", action="store_true", help="with --cfg: the values in the end")
    return made


def main(arguments: Sequence[str]) -> None:
    """Show the manual or the config, or train."""
    chosen = parser().read(arguments)
    if chosen.help:
        from fedsofim.config.help import manual

        return print(manual(chosen.overrides))
    if chosen.cfg:
        from fedsofim.config.compose import shown

        return print(shown(chosen.overrides, resolve=chosen.resolve), end="")
    train(chosen.overrides, several=chosen.multirun)


def train(overrides: Sequence[str], *, several: bool) -> None:
    """Train from these overrides; `several`: from each combination of their values."""
    from fedsofim.cli.terminal import Terminal
    from fedsofim.config.compose import compose_many, expand, make_absolute
    from fedsofim.config.schema import parse
    from fedsofim.engines import check
    from fedsofim.runs.session import run

    asked = expand(overrides) if several else [list(overrides)]
    jobs = list(zip(asked, compose_many(asked), strict=True))
    for _, values in jobs:
        make_absolute(values, Path.cwd())
        engine = parse(values).engine
        check(engine.name, engine.address)  # the last's mistakes come before the first's work
    for number, (given, values) in enumerate(jobs):
        own = values["output"]["dir"]
        place = Path(str(own)) / str(number) if several and own else None
        command = shlex.join(["fedsofim", "run", *given])
        run(values, place, command=command, observer=Terminal())
