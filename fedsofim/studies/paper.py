"""Each of the paper's results by name: run, and written as CSV, LaTeX and Markdown or pictures."""

from collections.abc import Callable, Iterator
from pathlib import Path

from fedsofim.config.compose import EPSILONS, compose
from fedsofim.config.schema import parse
from fedsofim.core.files import write_whole
from fedsofim.data.datasets import DatasetConfig, load
from fedsofim.data.partition import statistics
from fedsofim.reports import figures
from fedsofim.reports.svg import heat_map
from fedsofim.reports.tables import Table
from fedsofim.runs.experiment import load_divided
from fedsofim.studies.reproduce import (
    METHODS,
    Study,
    ablation_table,
    accuracy_table,
    cell,
    mcnemar_table,
    rho_table,
)

DATA = {"table3": "CIFAR-10", "table4": "PathMNIST"}


def _written(table: Table, stem: Path) -> Table:
    """Write a table in all its formats, and give it."""
    for ending, text in (("csv", table.csv()), ("tex", table.latex()), ("md", table.markdown())):
        write_whole(stem.with_suffix(f".{ending}"), text.encode())
    return table


def _accuracy(study: Study, directory: Path, name: str) -> Iterator[Table]:
    yield _written(accuracy_table(study, name.removeprefix("table")), directory / name)


def _ablation(study: Study, directory: Path, name: str) -> Iterator[Table]:
    yield _written(ablation_table(study, name.removeprefix("table")), directory / name)


def _rho(study: Study, directory: Path, name: str) -> Iterator[Table]:
    yield _written(rho_table(study), directory / name)


def _mcnemar(study: Study, directory: Path, name: str) -> Iterator[Table]:
    table = mcnemar_table(study, lambda data: load(DatasetConfig(name=data)).test_y)
    yield _written(table, directory / name)


def _partition(study: Study, directory: Path, name: str) -> Iterator[Table]:
    """Tables 13 and 14: who holds what, by our own draws."""
    for experiment, data in DATA.items():
        config = parse(compose([f"experiment={experiment}"]))
        loaded, parts = load_divided(config)
        stats = statistics(parts, loaded.train_y, loaded.classes)
        stem = directory / f"{name}-{config.dataset.name}"
        classes = [f"class {k}" for k in range(loaded.classes)]
        rows = [
            (str(i), *map(str, counts), str(sum(counts)), f"{kl:.3f}")
            for i, (counts, kl) in enumerate(zip(stats["counts"], stats["kl"], strict=True))
        ]
        sizes = stats["sizes"]
        title = (
            f"{data}, Dirichlet 0.5, seed 0: sizes {min(sizes)} to {max(sizes)}, mean KL "
            f"{stats['kl_mean']:.3f} (largest {max(stats['kl']):.3f}), absent classes a client "
            f"{stats['absent_mean']:.2f}"
        )
        yield _written(Table(title, ("client", *classes, "records", "KL"), rows), stem)
        picture = heat_map(stats["counts"], title=title, rows="client", columns="class")
        write_whole(stem.with_suffix(".svg"), picture.encode())


def _figures(study: Study, directory: Path, name: str) -> Iterator[Table]:
    yield from ()  # no tables
    directory.mkdir(parents=True, exist_ok=True)
    for experiment, data in DATA.items():
        keys = [(epsilon, method) for epsilon in EPSILONS for method in METHODS]
        runs = study.run([cell(experiment, method, epsilon) for epsilon, method in keys])
        curves = dict(zip(keys, runs, strict=True))
        title = f"{data}, 20 clients, Dirichlet 0.5"
        figures.convergence(curves, title, directory / f"convergence-{experiment}")
        figures.frontier(curves, title, directory / f"frontier-{experiment}")


# Each writes its files into a directory, under its name, and gives its tables.
MAKERS: dict[str, Callable[[Study, Path, str], Iterator[Table]]] = {
    "table3": _accuracy,
    "table4": _accuracy,
    "table5": _accuracy,
    "table6": _accuracy,
    "table8": _accuracy,
    "table9": _accuracy,
    "table10": _ablation,
    "table11": _ablation,
    "table12": _rho,
    "mcnemar": _mcnemar,
    "partition": _partition,
    "figures": _figures,
}
