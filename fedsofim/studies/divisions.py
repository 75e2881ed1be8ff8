"""Tables 13 and 14: who holds what, in our draw and in the paper's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arrays import Array
from fedsofim.core.files import write_whole
from fedsofim.data.partition import statistics
from fedsofim.data.published import published_counts
from fedsofim.reports.svg import heat_map
from fedsofim.reports.tables import Table
from fedsofim.runs.experiment import load_divided

EXPERIMENTS = {"13": ("table4", "PathMNIST"), "14": ("table3", "CIFAR-10")}


class Division(NamedTuple):
    """A division's name, and its statistics."""

    name: str
    known: dict[str, Any]


def division_tables(number: str, seeds: Sequence[int], directory: Path) -> list[Table]:
    """The counts of the first seed beside the paper's, and the statistics of all of them."""
    experiment, data = EXPERIMENTS[number]
    drawn = [_drawn(experiment, seed) for seed in seeds]
    name = data.lower().replace("-", "")
    theirs = Division("paper", _of_counts(published_counts(name)))
    for division, ending in ((drawn[0], ""), (theirs, "-paper")):
        title = f"{data}, Dirichlet 0.5, {division.name}: records of each class at each client"
        picture = heat_map(division.known["counts"], title=title, rows="client", columns="class")
        write_whole(directory / f"table{number}{ending}.svg", picture.encode())
    return [_counts(number, data, drawn[0], theirs), _summary(number, data, [*drawn, theirs])]


def _drawn(experiment: str, seed: int) -> Division:
    config = parse(compose([f"experiment={experiment}", f"seed={seed}"]))
    loaded, parts = load_divided(config)
    return Division(f"seed {seed}", statistics(parts, loaded.train_y, loaded.classes))


def _of_counts(counts: Array) -> dict[str, Any]:
    """The statistics of a division of which only the counts are known."""
    n, K = counts.shape
    labels = np.repeat(np.tile(np.arange(K), n), counts.ravel())
    ends = np.cumsum(counts.sum(axis=1))
    return statistics(np.split(np.arange(len(labels)), ends[:-1]), labels, K)


def _counts(number: str, data: str, ours: Division, theirs: Division) -> Table:
    """Clients from the largest to the smallest, ours beside the paper's."""
    ranked = [
        sorted(zip(d.known["sizes"], d.known["counts"], strict=True), reverse=True)
        for d in (ours, theirs)
    ]
    rows = []
    for i, ((size, counts), (their_size, their_counts)) in enumerate(zip(*ranked, strict=True)):
        cells = (f"{a} / {b}" for a, b in zip(counts, their_counts, strict=True))
        rows.append((str(i + 1), *cells, f"{size} / {their_size}"))
    classes = (f"class {k}" for k in range(len(rows[0]) - 2))
    title = f"Table {number}: {data}, records by class, ours ({ours.name}) / the paper's"
    return Table(f"{title}; clients by size", ("client", *classes, "records"), rows)


def _summary(number: str, data: str, divisions: Sequence[Division]) -> Table:
    rows = [
        (
            d.name,
            *(str(f(d.known["sizes"])) for f in (min, max)),
            *(f"{d.known[key]:,.0f}" for key in ("size_mean", "size_std")),
            f"{d.known['kl_mean']:.3f}",
            f"{max(d.known['kl']):.3f}",
            f"{d.known['absent_mean']:.2f}",
            str(max(d.known["absent"])),
        )
        for d in divisions
    ]
    sizes = ("draw", "smallest", "largest", "mean", "std")
    header = (*sizes, "mean KL", "largest KL", "absent classes, mean", "most")
    return Table(f"Table {number}: {data}, statistics of the divisions", header, rows)
