"""`fedsofim app`: a thin Flower app, to read, to sign, to share."""

from collections.abc import Sequence
from pathlib import Path

from fedsofim.cli.keys import keyed
from fedsofim.core.arguments import Parser

ABOUT = """Write a Flower app of a few text files that runs the installed package, with these keys
as its defaults:
  fedsofim app hospital strategy=sofim privacy.epsilon=1 dataset=pathmnist
  flwr run hospital --stream"""


def parser() -> Parser:
    """Its options."""
    made = keyed("app", ABOUT)
    made.add_argument("--publisher", default="fedsofim", help="your account on Flower's Hub")
    return made


def main(arguments: Sequence[str]) -> None:
    """Check the defaults, and write the app."""
    from fedsofim.config.compose import compose
    from fedsofim.config.schema import parse
    from fedsofim.core.errors import require
    from fedsofim.deploy.thin_app import write_app

    chosen = parser().read(arguments)
    folders = [word for word in chosen.overrides if "=" not in word]
    require(len(folders) == 1, "app: name one folder, as 'fedsofim app hospital'")
    overrides = [word for word in chosen.overrides if "=" in word]
    parse(compose(["engine=flower", *overrides]))
    place = write_app(Path(folders[0]), overrides, publisher=chosen.publisher)
    for file in sorted(file for file in place.rglob("*") if file.is_file()):
        print(f"{file.relative_to(place)!s:<28}{file.stat().st_size:>6} bytes")
    print(f"Read it, then: flwr run {folders[0]} --stream")
