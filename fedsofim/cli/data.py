"""`fedsofim data`: what is in a file, and a draft of a table's schema."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsofim.core.arguments import Parser
from fedsofim.core.errors import require

ABOUT = """Look at your data before anybody trains on it; nothing leaves this machine.
  fedsofim data check features.npz --classes adipose,debris,tumour
  fedsofim data check photos/
  fedsofim data schema patients.csv --target outcome
  fedsofim data check patients.csv"""


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim data", description=ABOUT)
    made.add_argument(
        "what",
        choices=["check", "schema"],
        help="check: what is in it, what is wrong, what would be public; schema: draft what a "
        "table's columns mean",
    )
    made.add_argument("file", type=Path, metavar="FILE", help=".npz, .csv, .parquet or a folder")
    made.add_argument("--classes", metavar="N|a,b,c|FILE", help="check: those that were agreed on")
    made.add_argument("--schema", type=Path, metavar="FILE", help="check: that of a table")
    made.add_argument("--target", metavar="COLUMN", help="schema: what is predicted")
    made.add_argument(
        "--without", default="", metavar="a,b", help="schema: columns to leave out, such as names"
    )
    made.add_argument("--out", type=Path, metavar="FILE", help="schema: by default x.schema.yaml")
    return made


def main(arguments: Sequence[str]) -> None:
    """Do one of the two."""
    if not arguments:
        return parser().print_help()
    chosen = parser().read(arguments)
    if chosen.what == "check":
        return _check(chosen)
    require(chosen.target is not None, "--target: name the column that is predicted")
    _schema(chosen)


def _check(chosen: argparse.Namespace) -> None:
    """Show the table; what is wrong is said last, and is the exit code."""
    from fedsofim.data.classes import Classes
    from fedsofim.data.inspection import inspect, shown
    from fedsofim.data.table import Table

    classes = Classes.written(chosen.classes) if chosen.classes else None
    table = Table(path=str(chosen.file), schema=str(chosen.schema)) if chosen.schema else None
    found = inspect(chosen.file, classes, table)
    print(shown(found))
    if found.faults:
        sys.exit(2)


def _schema(chosen: argparse.Namespace) -> None:
    from fedsofim.core.files import write_whole
    from fedsofim.data.hugging_face import HuggingFace
    from fedsofim.data.schema import drafted
    from fedsofim.data.table import read_table, schema_file

    out = chosen.out or schema_file(chosen.file)
    require(not out.exists(), f"{out}: exists already; name another with --out")
    kind, without = "hf" if chosen.file.is_dir() else "table", chosen.without.split(",")
    if kind == "hf":
        columns = HuggingFace(path=str(chosen.file)).columns()
    else:
        table = read_table(chosen.file)
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
    columns = {name: held for name, held in columns.items() if name not in without}
    write_whole(out, drafted(chosen.file.name, chosen.target, columns).encode())
    print(
        f"{out}: a draft, read from the rows, so it may tell of them. Check every line: declare "
        "what is possible, not what is there. Then\n"
        f"  fedsofim data check {chosen.file}\n"
        f"  fedsofim run dataset={kind} dataset.path={chosen.file}"
    )
