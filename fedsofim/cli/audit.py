"""`fedsofim audit`: how much a run gives away, beside what it claims."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsofim.cli.keys import keyed
from fedsofim.core.arguments import Parser
from fedsofim.core.errors import require

if TYPE_CHECKING:
    from fedsofim.config.schema import Config

ABOUT = """Attack a run, and show what that proves beside what the run claims, with the keys of
'fedsofim run', or of a finished run:
  fedsofim audit strategy=fedavg privacy.epsilon=5
  fedsofim audit outputs/2026-01-01/my-run    kept in its audit.json and shown in its report
The tests: a worst pair of neighbours over many runs of the client's program, canaries in one real
run on the data, and whether single numbers of a release betray the sum under the noise. Exit code 1
if a bound is above the claim. A low bound proves nothing."""


def parser() -> Parser:
    """Its options."""
    made = keyed("audit", ABOUT)
    made.add_argument("--device", action="store_true", help="what a deployed client sends")
    made.add_argument("--quick", action="store_true", help="a tenth of the work, weaker bounds")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument("--out", type=Path, metavar="PAGE", help="a page of it, as audit.html")
    return made


def main(arguments: Sequence[str]) -> None:
    """Audit a config or a finished run; exit with 1 if its claim is refuted."""
    chosen = parser().read(arguments)
    rest = chosen.overrides
    place = Path(rest[0]) if rest and "=" not in rest[0] else None
    require(place is None or len(rest) == 1, "audit: name one run directory, or give key=value")
    from fedsofim.config.compose import compose
    from fedsofim.config.schema import parse

    config = _config_of(place) if place else parse(compose(rest))
    row = _audited(config, chosen)
    if place:
        _keep(place, row)
    if chosen.out:
        _page(chosen.out, config, row, arguments)
    if chosen.json:
        print(json.dumps(row))
    else:
        _show(config, row)
    if not row["passed"]:
        print(f"fedsofim: {_refuted(row)}", file=sys.stderr)
        sys.exit(1)


def _config_of(place: Path) -> "Config":
    from fedsofim.config.schema import parse
    from fedsofim.runs.directory import RunDir

    return parse(RunDir.open(place).config())


def _audited(config: "Config", chosen: argparse.Namespace) -> dict[str, Any]:
    from fedsofim.cli.terminal import console
    from fedsofim.studies.audit import FULL, QUICK, audit

    size = QUICK if chosen.quick else FULL
    device, began = chosen.device, time.perf_counter()
    if chosen.json:
        found = audit(config, size=size, device=device)
    else:
        with console().status("audit") as status:
            found = audit(config, size=size, device=device, on_test=status.update)
    row = {"of": "device" if device else "simulation", **found.row()}
    return {**row, "seconds": round(time.perf_counter() - began, 1)}


def _keep(place: Path, row: dict[str, Any]) -> None:
    """Write the audit into the run's directory, and its report anew."""
    from fedsofim.reports.run_page import page_of
    from fedsofim.runs.directory import RunDir

    directory = RunDir.open(place)
    directory.write_json("audit.json", row)
    if (place / "summary.json").is_file():  # else the run is not finished, and has no report
        directory.write("report.html", page_of(directory).encode())


def _page(out: Path, config: "Config", row: dict[str, Any], arguments: Sequence[str]) -> None:
    from fedsofim.reports.audit import page_of
    from fedsofim.reports.names import data, method

    title = f"{method(config.strategy_name)} on {data(config.dataset.name)}"
    out.write_text(page_of(row, title, shlex.join(["fedsofim", "audit", *arguments])))


def _show(config: "Config", row: dict[str, Any]) -> None:
    from rich.table import Table

    from fedsofim.cli.terminal import console

    title = f"{config.strategy_name}, {row['of']}: epsilon at delta {row['delta']:g}"
    table = Table(title=title, title_justify="left")
    for name in ("test", "claimed", "lower bound", "confidence", "verdict"):
        table.add_column(name, justify="left" if name in ("test", "verdict") else "right")
    for test in row["tests"]:
        refuted = "[bold white on red] ABOVE THE CLAIM [/]"
        verdict = "within the claim" if test["passed"] else refuted
        cells = (f"{test['epsilon_claimed']:.4g}", f"{test['epsilon_lower_bound']:.4g}")
        table.add_row(test["test"], *cells, f"{100 * test['confidence']:.2f} %", verdict)
    for name in row["not_applicable"]:
        table.add_row(name, "", "", "", "not applicable")
    console().print(table)
    for test in row["tests"]:
        console().print(f"{test['test']}: {test['detail']}")
    for name, why in row["not_applicable"].items():
        console().print(f"{name}: not applicable, {why}")
    console().print(
        f"All bounds together hold with {row['confidence']:.0%} confidence; {row['seconds']} s"
    )


def _refuted(row: dict[str, Any]) -> str:
    """The worst finding, in one line."""
    failed = [test for test in row["tests"] if not test["passed"]]
    worst = max(failed, key=lambda test: test["epsilon_lower_bound"] / test["epsilon_claimed"])
    return (
        f"the claim is refuted: {worst['test']} shows epsilon >= "
        f"{worst['epsilon_lower_bound']:.4g} where {worst['epsilon_claimed']:.4g} is claimed, "
        f"with {row['confidence']:.0%} confidence"
    )
