"""The page that scripts/pfedsop_table.py writes: tables, a picture, and what they say."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsofim.reports.svg import strip_plot

Cells = Mapping[str, Mapping[str, Any]]
TITLES = {
    ("pfedsop", 0): "pFedSOP",
    ("pfedsop", 100): "pFedSOP + 100 steps",
    ("fedavg_finetune", 10): "FedAvg + 10 steps",
    ("fedavg_finetune", 100): "FedAvg + 100 steps",
    ("alone", 0): "local-only",
}
PLAIN = (("pfedsop", 0), ("fedavg_finetune", 10), ("fedavg_finetune", 100), ("alone", 0))
PRIVATE = (("pfedsop", 0), ("pfedsop", 100), ("fedavg_finetune", 100))


class Case(NamedTuple):
    """A data set, how uneven its clients are, and how many."""

    dataset: str
    alpha: float
    clients: int

    def __str__(self) -> str:
        return f"{self.dataset}, Dirichlet {self.alpha:g}, {self.clients} clients"


class Page:
    """The page, from the numbers of all cells."""

    def __init__(self, cells: Cells, shown: Sequence[int], epsilons: Sequence[float]) -> None:
        self.cells, self.shown, self.epsilons = cells, shown, epsilons
        self.cases = list(
            dict.fromkeys(Case(c["dataset"], c["alpha"], c["clients"]) for c in cells.values())
        )

    def cell(self, case: Case, method: str, epsilon: float, tuned: int) -> Mapping[str, Any]:
        """The numbers of one method on one case."""
        return self.cells["/".join(map(str, (*case, method, epsilon, tuned)))]

    def curve(self, case: Case, method: str, epsilon: float, tuned: int) -> dict[int, float]:
        """Mean personal accuracy in percent, by round."""
        curve = self.cell(case, method, epsilon, tuned)["curve"]
        return {int(t): 100 * accuracy for t, accuracy in curve.items()}

    def final(self, case: Case, method: str, epsilon: float, tuned: int) -> float:
        """Mean personal accuracy in percent after the last round."""
        return self.curve(case, method, epsilon, tuned)[self.shown[-1]]

    def plain_table(self) -> Iterator[str]:
        """Accuracy by round without a budget."""
        ends = ("to F10", "to F100")
        yield table_row("case", "method", *(f"round {t}" for t in self.shown), *ends)
        yield table_row("---", "---", *["---:"] * (len(self.shown) + 2))
        for case in self.cases:
            targets = [self.final(case, "fedavg_finetune", 0, k) for k in (10, 100)]
            for kind in PLAIN:
                curve = self.curve(case, kind[0], 0, kind[1])
                scores = (f"{curve[t]:.1f}" for t in self.shown)
                until = (reached(curve, target) or "never" for target in targets)
                yield table_row(case, TITLES[kind], *scores, *until)

    def private_table(self) -> Iterator[str]:
        """Accuracy after the last round with a budget."""
        titles = (TITLES[kind] for kind in PRIVATE)
        yield table_row("case", "epsilon", *titles, "local-only, epsilon 0")
        yield table_row("---", *["---:"] * 5)
        for case in self.cases:
            alone = self.final(case, "alone", 0, 0)
            for epsilon in self.epsilons:
                scores = [*(self.final(case, m, epsilon, k) for m, k in PRIVATE), alone]
                marked = (f"**{s:.1f}**" if s == max(scores) else f"{s:.1f}" for s in scores)
                yield table_row(case, epsilon, *marked)

    def spread_table(self) -> Iterator[str]:
        """Mean, standard deviation and worst decile over clients, without a budget."""
        yield table_row("case", *(TITLES[kind] for kind in PLAIN))
        yield table_row("---", *["---:"] * len(PLAIN))
        for case in self.cases:
            clients = (self.cell(case, m, 0, k)["by_client"] for m, k in PLAIN)
            yield table_row(case, *map(spread, clients))

    def speed(self, steps: int) -> str:
        """Where pFedSOP is faster than FedAvg with fine-tuning, and where it is not."""
        faster, told = 0, []
        for case in self.cases:
            tuned = self.curve(case, "fedavg_finetune", 0, steps)
            target = tuned[self.shown[-1]]
            ours = reached(self.curve(case, "pfedsop", 0, 0), target)
            theirs = reached(tuned, target)
            if ours and theirs and ours < theirs:
                faster += 1
            else:
                told.append(f"{case} ({ours or 'never'} against {theirs})")
        but = f" It does not on {'; '.join(told)}." if told else ""
        return (
            f"pFedSOP reaches the last accuracy of {TITLES['fedavg_finetune', steps]} in fewer "
            f"rounds than that does in {faster} of {len(self.cases)} cases.{but}"
        )

    def against_alone(self) -> str:
        """What federation adds without a budget."""
        parts = []
        for method, steps in PLAIN[:-1]:
            gains = [
                self.final(case, method, 0, steps) - self.final(case, "alone", 0, 0)
                for case in self.cases
            ]
            parts.append(f"{TITLES[method, steps]} {min(gains):+.1f} to {max(gains):+.1f}")
        return f"At the last round, in points above local-only: {', '.join(parts)}."

    def worth(self) -> str:
        """Whether a budget buys anything."""
        parts = []
        for method, steps in PRIVATE:
            gains = [
                self.final(case, method, epsilon, steps) - self.final(case, "alone", 0, 0)
                for case in self.cases
                for epsilon in self.epsilons
            ]
            wins = sum(gain > 0 for gain in gains)
            best = f"{max(gains):+.1f} points at best"
            parts.append(f"{TITLES[method, steps]} in {wins} of {len(gains)} ({best})")
        return f"Better than local-only, which spends nothing: {', '.join(parts)}."


def reached(curve: Mapping[int, float], target: float) -> int | None:
    """The first round, of those scored, at which a curve is at least at the target."""
    return next((t for t in sorted(curve) if curve[t] >= target), None)


def spread(accuracies: Sequence[float]) -> str:
    """Mean, standard deviation and the worst tenth's mean, in percent."""
    a = 100 * np.sort(accuracies)
    return f"{a.mean():.1f} ± {a.std():.1f}, {a[: -(-len(a) // 10)].mean():.1f}"


def table_row(*entries: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, entries))} |"


def settings(cells: Cells) -> Iterator[str]:
    """What was chosen on the records held out."""
    hidden = ("privacy=", "privacy.epsilon", "client.steps", "client.batch", "client.tune_batch")
    yield table_row("case", "method", "epsilon", "settings", "held-out accuracy")
    yield table_row("---", "---", "---:", "---", "---:")
    for c in cells.values():
        case = Case(c["dataset"], c["alpha"], c["clients"])
        chosen = ", ".join(s for s in c["settings"] if not s.startswith(hidden))
        title, epsilon = TITLES[c["method"], c["tuned"]], c["epsilon"] or "none"
        yield table_row(case, title, epsilon, f"`{chosen}`", f"{100 * c['held_out']:.1f}")


def write(
    docs: Path,
    cells: Cells,
    shown: Sequence[int],
    epsilons: Sequence[float],
    more: Mapping[str, str],
) -> None:
    """Write `pfedsop.md`, around the text of `pfedsop_page.md`, and its picture.

    Args:
        docs: where to.
        cells: the numbers of `pfedsop.json`.
        shown: the rounds in the tables.
        epsilons: the budgets in the tables.
        more: other texts that the page takes, by name.
    """
    page = Page(cells, shown, epsilons)
    case = page.cases[0]
    groups = {
        TITLES[kind]: [100 * a for a in page.cell(case, kind[0], 0, kind[1])["by_client"]]
        for kind in PLAIN
    }
    picture = strip_plot(groups, title=f"{case}: accuracy by client", x="accuracy, %", width=640)
    (docs / "pfedsop.svg").write_text(picture + "\n")
    values = {
        "plain": "\n".join(page.plain_table()),
        "private": "\n".join(page.private_table()),
        "spread": "\n".join(page.spread_table()),
        "settings": "\n".join(settings(cells)),
        "speed": f"{page.speed(10)}\n\n{page.speed(100)}",
        "alone": page.against_alone(),
        "worth": page.worth(),
        **more,
    }
    text = Path(__file__).with_name("pfedsop_page.md").read_text()
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    (docs / "pfedsop.md").write_text(text)
