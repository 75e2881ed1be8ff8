"""What an owner's records have been charged for, as a table and a chart; checks that it is true."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from fedsofim.core.arguments import Parser
from fedsofim.privacy.accounting import epsilon_of, mu_of
from fedsofim.privacy.book import Budget, Charge, add, mu2_of
from fedsofim.privacy.ledger import Ledger, opened

# Rows of a table that are shown, and characters of a bar.
ROWS, WIDTH = 30, 40
EXAMPLES = """\
fedsofim ledger show client            what was spent, when, for which run, and what is left
fedsofim ledger show client --json
fedsofim ledger verify client          exit code 2 and what is wrong, if anything is
fedsofim ledger adopt client           go on with a ledger that was moved here from another machine
"""


class Row(NamedTuple):
    """A run, or a day: its releases and what they cost."""

    name: str
    first: str
    last: str
    releases: int
    mu2: float
    total: float


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim ledger", description=__doc__, epilog=EXAMPLES)
    made.add_argument("command", choices=["show", "verify", "adopt"])
    made.add_argument("dir", type=Path, help="a client's directory, as for 'deploy client --dir'")
    made.add_argument("--json", action="store_true", help="for programs to read")
    return made


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands."""
    chosen = parser().read(arguments or ["--help"])
    ledger = opened(chosen.dir)
    if chosen.command == "show":
        show(ledger, as_json=chosen.json)
        return
    with ledger.locked():
        balance = ledger.adopt() if chosen.command == "adopt" else ledger.verify()
    ledger.budget = balance.budget or ledger.budget
    epsilon = ledger.epsilon()
    said = {"ok": True, "lines": balance.lines, "epsilon_spent": epsilon}
    text = f"{ledger.path}: {balance.lines} lines, all as they were written; epsilon {epsilon:.4g}"
    print(json.dumps(said) if chosen.json else f"{text} is spent")


def show(ledger: Ledger, *, as_json: bool) -> None:
    """Print what was spent, and what is left."""
    history, budget = ledger.history(), ledger.budget
    runs = rows(history, budget, lambda time, charge: charge.run)
    days = rows(history, budget, lambda time, charge: time[:10])
    spent = days[-1].total if days else 0.0
    if as_json:
        values = {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "adjacency": budget.adjacency,
            "epsilon_spent": _epsilon(spent, budget),
            "epsilon_left": left(spent, budget),
            "runs": [_values(row, budget) for row in runs],
            "days": [_values(row, budget) for row in days],
        }
        finite = {k: None if v == math.inf else v for k, v in values.items()}  # JSON has no inf
        return print(json.dumps(finite))
    console = Console(highlight=False)
    console.print(_table(runs, budget))
    if days:
        console.print(_chart(days, budget))
    console.print(
        f"epsilon {_epsilon(spent, budget):.4g} of {budget.epsilon:g} is spent, at delta "
        f"{budget.delta:g} ({budget.adjacency}); one more run may spend "
        f"{left(spent, budget):.4g}",
        soft_wrap=True,
    )


def rows(
    history: Sequence[tuple[str, Charge]], budget: Budget, name: Callable[[str, Charge], str]
) -> list[Row]:
    """The history by run, or by day, in the order of their first charge."""
    found: dict[str, Row] = {}
    total = 0.0
    for time, charge in history:
        mu2 = mu2_of(charge.event(budget.adjacency))
        total, key = add(total, mu2), name(time, charge)
        old = found.get(key, Row(key, time, time, 0, 0.0, 0.0))
        found[key] = Row(key, old.first, time, old.releases + 1, add(old.mu2, mu2), total)
    return list(found.values())


def left(spent: float, budget: Budget) -> float:
    """The epsilon that one more run may spend: costs add up in mu^2, not in epsilon."""
    if math.isinf(budget.epsilon):
        return math.inf
    rest = mu_of(budget.epsilon, budget.delta) ** 2 - spent
    return epsilon_of(math.sqrt(rest), budget.delta) if rest > 0 else 0.0


def _epsilon(mu2: float, budget: Budget) -> float:
    return epsilon_of(math.sqrt(mu2), budget.delta)


def _values(row: Row, budget: Budget) -> dict[str, str | int | float]:
    return {
        "name": row.name,
        "first": row.first,
        "last": row.last,
        "releases": row.releases,
        "epsilon": _epsilon(row.mu2, budget),
        "epsilon_after": _epsilon(row.total, budget),
    }


def _table(runs: Sequence[Row], budget: Budget) -> Table:
    title = f"{len(runs)} run{'s' * (len(runs) != 1)}"
    title += f", the last {ROWS} of them" if len(runs) > ROWS else ""
    table = Table(title=title, title_justify="left")
    for name in ("run", "first", "last"):
        table.add_column(name, no_wrap=True)
    for name in ("releases", "epsilon", "so far"):
        table.add_column(name, justify="right")
    for row in runs[-ROWS:]:
        costs = (f"{_epsilon(mu2, budget):.4g}" for mu2 in (row.mu2, row.total))
        times = (time[:16].replace("T", " ") for time in (row.first, row.last))
        table.add_row(row.name[:8], *times, str(row.releases), *costs)
    return table


def _chart(days: Sequence[Row], budget: Budget) -> Table:
    """How the budget fills, day by day."""
    most = budget.epsilon if math.isfinite(budget.epsilon) else _epsilon(days[-1].total, budget)
    table = Table(box=None, show_header=False, padding=(0, 1))
    for row in days[-ROWS:]:
        epsilon = _epsilon(row.total, budget)
        full = round(WIDTH * min(1.0, epsilon / most)) if 0 < most < math.inf else WIDTH
        bar = "█" * full + "░" * (WIDTH - full)
        table.add_row(row.name, bar, f"{epsilon:.4g}", f"{row.releases} releases")
    return table
