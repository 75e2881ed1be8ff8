"""Tables of results beside the paper's: as text, CSV and LaTeX."""

import csv
from collections.abc import Iterable, Sequence
from functools import cache
from io import StringIO
from statistics import mean, stdev
from typing import NamedTuple

from fedsofim.core.shipped import shipped

PAPER = shipped("data/paper")
TEX = {
    **{"%": r"\%", "_": r"\_", "&": r"\&"},
    **{"±": r"$\pm$", "↑": r"$\uparrow$", "†": r"$\dagger$"},
}


class Score(NamedTuple):
    """Mean and standard deviation over seeds, in percent."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.2f}±{self.std:.2f}"


def score(accuracies: Sequence[float]) -> Score:
    """Of accuracies between 0 and 1.

    >>> str(score([0.5, 0.6]))
    '55.00±7.07'
    """
    percent = [100 * a for a in accuracies]
    return Score(mean(percent), stdev(percent) if len(percent) > 1 else 0.0)


@cache
def paper(name: str) -> list[dict[str, str]]:
    """The rows of a file of the paper's results: accuracy, mcnemar and others."""
    with open(PAPER / f"{name}.csv") as file:
        return list(csv.DictReader(file))


class Table(NamedTuple):
    """A table of texts with a title."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def markdown(self) -> str:
        """As GitHub shows it."""
        lines = [f"**{self.title}**", "", _pipes(self.header), _pipes("---:" for _ in self.header)]
        lines += [_pipes(row) for row in self.rows]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """With a header line."""
        text = StringIO()
        csv.writer(text).writerows([self.header, *self.rows])
        return text.getvalue()

    def latex(self) -> str:
        """For a paper, with the booktabs package."""
        body = [" & ".join(map(_tex, row)) + r" \\" for row in (self.header, *self.rows)]
        return "\n".join(
            [
                rf"% {self.title}",
                rf"\begin{{tabular}}{{{'r' * len(self.header)}}}",
                r"\toprule",
                body[0],
                r"\midrule",
                *body[1:],
                r"\bottomrule",
                r"\end{tabular}",
                "",
            ]
        )


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _tex(cell: str) -> str:
    for character, command in TEX.items():
        cell = cell.replace(character, command)
    return cell
