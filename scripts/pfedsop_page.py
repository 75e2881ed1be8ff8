"""The page that scripts/pfedsop_table.py writes: tables, a picture, and what they say."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsofim.svg import strip_plot

Cells = Mapping[str, Mapping[str, Any]]
TITLES = {
    ("local", False): "local-only",
    ("fedavg_finetune", True): "FedAvg + fine-tuning",
    ("pfedsop", False): "pFedSOP",
    ("pfedsop", True): "pFedSOP + tuning",
}


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

    def cell(self, case: Case, method: str, epsilon: float, tuned: bool) -> Mapping[str, Any]:
        """The numbers of one method on one case."""
        return self.cells["/".join(map(str, (*case, method, epsilon, tuned)))]

    def curve(self, case: Case, method: str, epsilon: float, tuned: bool) -> dict[int, float]:
        """Mean personal accuracy in percent, by round."""
        curve = self.cell(case, method, epsilon, tuned)["curve"]
        return {int(t): 100 * accuracy for t, accuracy in curve.items()}

    def final(self, case: Case, method: str, epsilon: float, tuned: bool) -> float:
        """Mean personal accuracy in percent after the last round."""
        return self.curve(case, method, epsilon, tuned)[self.shown[-1]]

    def plain_table(self) -> Iterator[str]:
        """Accuracy by round without a budget."""
        yield table_row("case", "method", *(f"round {t}" for t in self.shown), "rounds to FA")
        yield table_row("---", "---", *["---:"] * (len(self.shown) + 1))
        for case in self.cases:
            target = self.final(case, "fedavg_finetune", 0, True)
            for method, tuned in (("pfedsop", False), ("fedavg_finetune", True), ("local", False)):
                curve = self.curve(case, method, 0, tuned)
                scores = (f"{curve[t]:.1f}" for t in self.shown)
                until = reached(curve, target)
                yield table_row(case, TITLES[method, tuned], *scores, until or "never")

    def private_table(self) -> Iterator[str]:
        """Accuracy after the last round with a budget."""
        yield table_row("case", "epsilon", "pFedSOP", "pFedSOP + tuning", "FA", "local-only, 0")
        yield table_row("---", *["---:"] * 5)
        for case in self.cases:
            alone = self.final(case, "local", 0, False)
            for epsilon in self.epsilons:
                kinds = (("pfedsop", False), ("pfedsop", True), ("fedavg_finetune", True))
                scores = [self.final(case, m, epsilon, tuned) for m, tuned in kinds]
                best = max(*scores, alone)
                marked = (f"**{s:.1f}**" if s == best else f"{s:.1f}" for s in (*scores, alone))
                yield table_row(case, epsilon, *marked)

    def spread_table(self) -> Iterator[str]:
        """Mean, standard deviation and worst decile over clients, without a budget."""
        yield table_row("case", "pFedSOP", "FedAvg + fine-tuning", "local-only")
        yield table_row("---", *["---:"] * 3)
        for case in self.cases:
            kinds = (("pfedsop", False), ("fedavg_finetune", True), ("local", False))
            yield table_row(case, *(spread(self.cell(case, m, 0, t)["clients"]) for m, t in kinds))

    def speed(self) -> str:
        """Where pFedSOP is faster than FedAvg with fine-tuning, and where it is not."""
        faster, told = 0, []
        for case in self.cases:
            tuned = self.curve(case, "fedavg_finetune", 0, True)
            target = tuned[self.shown[-1]]
            ours = reached(self.curve(case, "pfedsop", 0, False), target)
            theirs = reached(tuned, target)
            if ours and theirs and ours < theirs:
                faster += 1
            else:
                told.append(f"{case} ({ours or 'never'} against {theirs})")
        but = f"; it does not on {'; '.join(told)}" if told else ""
        return (
            f"pFedSOP reaches the final accuracy of FedAvg with fine-tuning in fewer rounds than "
            f"the latter does in {faster} of {len(self.cases)} cases{but}."
        )

    def against_alone(self) -> str:
        """What federation adds without a budget."""
        gains = {
            method: [
                self.final(case, method, 0, tuned) - self.final(case, "local", 0, False)
                for case in self.cases
            ]
            for method, tuned in (("pfedsop", False), ("fedavg_finetune", True))
        }
        ranges = {m: f"{min(g):+.1f} to {max(g):+.1f}" for m, g in gains.items()}
        return (
            "Against local-only training, which sends nothing, the last round of pFedSOP is "
            f"{ranges['pfedsop']} points, that of FedAvg with fine-tuning "
            f"{ranges['fedavg_finetune']} points."
        )

    def worth(self) -> str:
        """Whether a budget buys anything."""
        counts = dict.fromkeys(
            (("pfedsop", False), ("pfedsop", True), ("fedavg_finetune", True)), 0
        )
        margin = dict.fromkeys(counts, -100.0)
        for case in self.cases:
            alone = self.final(case, "local", 0, False)
            for epsilon in self.epsilons:
                for kind in counts:
                    gain = self.final(case, kind[0], epsilon, kind[1]) - alone
                    counts[kind] += gain > 0
                    margin[kind] = max(margin[kind], gain)
        of = len(self.cases) * len(self.epsilons)
        parts = (
            f"{TITLES[kind]} in {count} of {of} (at best {margin[kind]:+.1f} points)"
            for kind, count in counts.items()
        )
        return f"With a budget, better than local-only at epsilon 0: {', '.join(parts)}."


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


def write(docs: Path, cells: Cells, shown: Sequence[int], epsilons: Sequence[float]) -> None:
    """Write `pfedsop.md`, around the text of `pfedsop_page.md`, and its picture."""
    page = Page(cells, shown, epsilons)
    case = page.cases[0]
    kinds = (("pfedsop", False), ("fedavg_finetune", True), ("local", False))
    groups = {
        TITLES[kind]: [100 * a for a in page.cell(case, kind[0], 0, kind[1])["clients"]]
        for kind in kinds
    }
    picture = strip_plot(groups, title=f"{case}: accuracy by client", x="accuracy, %", width=640)
    (docs / "pfedsop.svg").write_text(picture + "\n")
    values = {
        "plain": "\n".join(page.plain_table()),
        "private": "\n".join(page.private_table()),
        "spread": "\n".join(page.spread_table()),
        "settings": "\n".join(settings(cells)),
        "speed": page.speed(),
        "alone": page.against_alone(),
        "worth": page.worth(),
    }
    text = Path(__file__).with_name("pfedsop_page.md").read_text()
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    (docs / "pfedsop.md").write_text(text)
