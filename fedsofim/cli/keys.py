"""What commands with Hydra's `key=value` arguments share."""

from fedsofim.config.overrides import instead_of
from fedsofim.core.arguments import Parser


def keyed(command: str, text: str, *, add_help: bool = True) -> Parser:
    """A parser of a command whose words are overrides, as `fedsofim run` takes them."""
    parser = Parser(
        prog=f"fedsofim {command}", description=text, unknown=instead_of, add_help=add_help
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as for 'fedsofim run', which lists them"
    )
    return parser


def take(overrides: list[str], key: str) -> str | None:
    """Take a key's value, the last that was given, out of the overrides."""
    found = [o.partition("=")[2] for o in overrides if o.startswith(f"{key}=")]
    overrides[:] = [o for o in overrides if not o.startswith(f"{key}=")]
    return found[-1] if found else None
