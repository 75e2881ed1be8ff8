"""Each of the paper's results by name: run, and written as CSV, LaTeX and Markdown or pictures."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from fedsofim.core.files import write_whole
from fedsofim.reports import figures
from fedsofim.reports.tables import Table
from fedsofim.studies.choices import choices_table
from fedsofim.studies.costs import cost_table
from fedsofim.studies.divisions import division_tables
from fedsofim.studies.reproduce import (
    DIRICHLET,
    Study,
    ablation_table,
    ablations,
    accuracies,
    accuracy_table,
    published,
    published_ablations,
    rho_table,
    rounds_table,
)
from fedsofim.studies.significance import mcnemar_table

# What the tables of accuracies are about.
TITLES = {
    "3": "CIFAR-10, ResNet-20, Dirichlet 0.5",
    "4": "PathMNIST, ResNet-20, Dirichlet 0.5",
    "5": "CIFAR-10, VGG-16, Dirichlet 0.5",
    "6": "PathMNIST, VGG-16, Dirichlet 0.5",
    "8": "CIFAR-10, ResNet-20, IID",
    "9": "PathMNIST, ResNet-20, IID",
}
Maker = Callable[[Study, Path], Iterable[Table]]


def _written(table: Table, stem: Path) -> Table:
    """Write a table in all its formats, and give it."""
    for ending, text in (("csv", table.csv()), ("tex", table.latex()), ("md", table.markdown())):
        write_whole(stem.with_suffix(f".{ending}"), text.encode())
    return table


def _table(name: str, make: Callable[[Study], Table]) -> Maker:
    return lambda study, directory: [_written(make(study), directory / name)]


def _accuracy(number: str) -> Maker:
    return _table(f"table{number}", partial(accuracy_table, number=number))


def _ablation(number: str) -> Maker:
    return _table(f"table{number}", partial(ablation_table, number=number))


def _mcnemar(number: str) -> Maker:
    return _table(f"table{number}", partial(mcnemar_table, number=number))


def _division(number: str) -> Maker:
    def make(study: Study, directory: Path) -> Iterable[Table]:
        made = division_tables(number, study.seeds, directory)
        stems = (directory / f"table{number}", directory / f"table{number}-statistics")
        return [_written(table, stem) for table, stem in zip(made, stems, strict=True)]

    return make


def _convergence(figure: int, table: str) -> Maker:
    def make(study: Study, directory: Path) -> Iterable[Table]:
        directory.mkdir(parents=True, exist_ok=True)
        title = f"Figure {figure}: {TITLES[table]}, 20 clients"
        ours, theirs = accuracies(study, table), published(table)
        figures.convergence(ours, theirs, title, directory / f"figure{figure}")
        return ()

    return make


def _bars(figure: int, table: str) -> Maker:
    def make(study: Study, directory: Path) -> Iterable[Table]:
        directory.mkdir(parents=True, exist_ok=True)
        data = {"10": "CIFAR-10", "11": "PathMNIST"}[table]
        title = f"Figure {figure}: ablations on {data}, Dirichlet 0.5, accuracy at round 70"
        ours, theirs = ablations(study, table), published_ablations(table)
        figures.ablation(ours, theirs, title, directory / f"figure{figure}")
        return ()

    return make


def _frontier(study: Study, directory: Path) -> Iterable[Table]:
    directory.mkdir(parents=True, exist_ok=True)
    for table in DIRICHLET:
        curves = accuracies(study, table)
        figures.frontier(curves, TITLES[table], directory / f"frontier-table{table}")
    return ()


# Each writes its files into a directory, under its name, and gives its tables.
MAKERS: dict[str, Maker] = {
    **{f"table{number}": _accuracy(number) for number in TITLES},
    "table7": _table("table7", lambda study: cost_table()),
    **{f"table{number}": _ablation(number) for number in ("10", "11")},
    "table12": _table("table12", rho_table),
    **{f"table{number}": _division(number) for number in ("13", "14")},
    **{f"table{number}": _mcnemar(number) for number in ("15", "16")},
    **{f"figure{i}": _convergence(i, table) for i, table in enumerate(TITLES, start=1)},
    **{f"figure{i}": _bars(i, table) for i, table in ((7, "10"), (8, "11"))},
    "rounds": _table("rounds", rounds_table),
    "frontier": _frontier,
    "choices": _table("choices", choices_table),
}
