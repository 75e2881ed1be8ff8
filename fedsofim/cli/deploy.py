"""`fedsofim deploy`: real machines; its own commands are in `fedsofim.deploy.commands`."""

from collections.abc import Sequence

from fedsofim.core.arguments import Parser


def parser() -> Parser:
    """Its options."""
    from fedsofim.deploy.commands import parser

    return parser()


def main(arguments: Sequence[str]) -> None:
    """Run one of its commands."""
    from fedsofim.deploy.commands import main

    main(arguments)
