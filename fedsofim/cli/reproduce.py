"""`fedsofim reproduce`: the paper's tables and figures, run, shown and written."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table as RichTable

from fedsofim.cli.terminal import bar, console
from fedsofim.config.compose import EPSILONS, compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import require
from fedsofim.core.files import write_whole
from fedsofim.data.datasets import DatasetConfig, load
from fedsofim.data.partition import statistics
from fedsofim.reports import figures
from fedsofim.reports.svg import heat_map
from fedsofim.reports.tables import Table
from fedsofim.studies.reproduce import (
    METHODS,
    Lab,
    ablation_table,
    accuracy_table,
    cell,
    mcnemar_table,
    rho_table,
)

VGG = ("table5", "table6")
DATA = {"table3": "CIFAR-10", "table4": "PathMNIST"}


def reproduce(
    what: str, directory: Path, settings: str, seeds: Sequence[int], features: str | None = None
) -> None:
    """Make one of the paper's results, or `all`, in a directory.

    Args:
        what: one of `MAKERS`, or `all` that need no features of the user's.
        directory: where the tables and figures go, and until all are made, the finished runs.
        settings: `published` or `tuned`.
        seeds: of the runs.
        features: the file of VGG-16 features for tables 5 and 6.
    """
    makers = {name: make for name, make in MAKERS.items() if what != "all" or name not in VGG}
    names = (*MAKERS, "all")
    require(what in names, f"reproduce {what}: unknown; choose one of {', '.join(names)}")
    make = makers if what == "all" else {what: MAKERS[what]}
    require(what not in VGG or features is not None, f"{what}: give --features FILE (VGG-16's)")
    extra = [f"settings={settings}", *([f"dataset.path={features}"] if what in VGG else [])]
    directory.mkdir(parents=True, exist_ok=True)
    kept = directory / "unfinished"
    with bar() as show:
        lab = Lab(extra, seeds, lambda d, n: show(completed=d, total=n), kept)
        for name, maker in make.items():
            began = time.perf_counter()
            show(description=name)
            maker(lab, directory, name)
            console.print(f"{name}: {time.perf_counter() - began:.1f} s")
    lab.finish()
    console.print(f"Written to {directory}", soft_wrap=True)


def _accuracy(lab: Lab, directory: Path, name: str) -> None:
    _write(accuracy_table(lab, name.removeprefix("table")), directory / name, narrow=True)


def _ablation(lab: Lab, directory: Path, name: str) -> None:
    _write(ablation_table(lab, name.removeprefix("table")), directory / name)


def _rho(lab: Lab, directory: Path, name: str) -> None:
    _write(rho_table(lab), directory / name)


def _mcnemar(lab: Lab, directory: Path, name: str) -> None:
    table = mcnemar_table(lab, lambda data: load(DatasetConfig(name=data)).test_y)
    _write(table, directory / name)


def _partition(lab: Lab, directory: Path, name: str) -> None:
    """Tables 13 and 14: who holds what, by our own draws."""
    for experiment, data in DATA.items():
        config = parse(compose([f"experiment={experiment}"]))
        loaded = load(config.extraction.dataset)
        parts = config.partition.split(loaded.train_y, loaded.classes, config.seed)
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
        _write(Table(title, ("client", *classes, "records", "KL"), rows), stem)
        picture = heat_map(stats["counts"], title=title, rows="client", columns="class")
        write_whole(stem.with_suffix(".svg"), picture.encode())


def _figures(lab: Lab, directory: Path, name: str) -> None:
    for experiment, data in DATA.items():
        keys = [(epsilon, method) for epsilon in EPSILONS for method in METHODS]
        runs = lab.run([cell(experiment, method, epsilon) for epsilon, method in keys])
        curves = dict(zip(keys, runs, strict=True))
        title = f"{data}, 20 clients, Dirichlet 0.5"
        figures.convergence(curves, title, directory / f"convergence-{experiment}")
        figures.frontier(curves, title, directory / f"frontier-{experiment}")


def _write(table: Table, stem: Path, narrow: bool = False) -> None:
    for ending, text in (("csv", table.csv()), ("tex", table.latex()), ("md", table.markdown())):
        write_whole(stem.with_suffix(f".{ending}"), text.encode())
    shown = list(range(len(table.header)))
    if narrow:  # the first and the last round; the files have all
        shown = [0, 1, 2, 3, *shown[-5:]]
    if not console.is_terminal:  # whole, however narrow the pipe is taken to be
        console.print(table.title, soft_wrap=True, markup=False)
        for row in (table.header, *table.rows):
            cells = (f"{row[i]:>14}" for i in shown)
            console.print(" ".join(cells), soft_wrap=True, markup=False)
        return
    rich = RichTable(title=table.title, title_justify="left")
    for i in shown:
        rich.add_column(table.header[i], justify="right", no_wrap=i < 2)
    for row in table.rows:
        rich.add_row(*(row[i] for i in shown))
    console.print(rich)


MAKERS: dict[str, Callable[[Lab, Path, str], None]] = {
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
