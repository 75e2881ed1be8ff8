"""What an owner says on its client's command line."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fedsofim.core.errors import ConfigError
from fedsofim.data.classes import Classes


def client_arguments(parser: argparse.ArgumentParser) -> None:
    """All that an owner decides."""
    parser.add_argument("--server", required=True, metavar="HOST:PORT")
    parser.add_argument("--ca", required=True, type=Path, help="the server's ca.crt")
    parser.add_argument("--id", required=True, type=int, help="this client's number, from 0")
    parser.add_argument(
        "--data",
        required=True,
        type=Path,
        help="an .npz file with x and y, or train_x and train_y as 'fedsofim features' writes it",
    )
    parser.add_argument(
        "--classes",
        required=True,
        type=classes,
        metavar="N|a,b,c|FILE",
        help="how many classes there are, labels from 0; or the names that all owners agreed on, "
        "in their order, which the server is told; or a file with a name in each line",
    )
    parser.add_argument(
        "--epsilon", required=True, type=float, help="all that may be learned about one record"
    )
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--adjacency", choices=["replace-one", "add-remove"], default="replace-one")
    parser.add_argument(
        "--policy", type=Path, help="a TOML file of rules beside the budget; see --policy-example"
    )
    parser.add_argument("--policy-example", action=_PolicyExample, help="print one, with all rules")
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="FILE",
        help="all clients' public keys, as 'fedsofim deploy peers' writes them; needed for "
        "privacy.trust=aggregate. Have it from the other owners, not from the server",
    )
    parser.add_argument(
        "--honest",
        type=int,
        default=0,
        metavar="N",
        help="so many of the other clients surely are honest: with privacy.trust=aggregate their "
        "noise counts, and no more than theirs; 0: the policy says it, and else nobody's counts",
    )
    parser.add_argument("--dir", type=Path, default=Path("client"), help="key, ledger and state")
    parser.add_argument("--port", type=int, default=9094, help="for this machine's own processes")
    parser.add_argument(
        "--trusted",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="public keys; only code that one of them signed is run. May be repeated",
    )


def classes(text: str) -> Classes:
    """The classes that an owner declares."""
    try:
        return Classes.written(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _PolicyExample(argparse.Action):
    """Print a policy file and end, as `--help` does, whatever else is missing."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given, nargs=0)

    def __call__(self, *_: object) -> None:
        from fedsofim.privacy.policy import EXAMPLE

        print(EXAMPLE, end="")
        sys.exit(0)
