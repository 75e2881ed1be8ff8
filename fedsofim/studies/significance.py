"""Tables 15 and 16: McNemar's test of SOFIM against each baseline, record by record."""

import math
from collections.abc import Iterator

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arrays import Array
from fedsofim.reports.tables import Table, paper
from fedsofim.runs.experiment import load_divided
from fedsofim.studies.reproduce import Runs, Study, accuracies

# The tables of accuracies that each of the two is about, and their backbones.
HALVES = {
    "15": ("CIFAR-10", {"3": "resnet20", "5": "vgg16"}),
    "16": ("PathMNIST", {"4": "resnet20", "6": "vgg16"}),
}


def mcnemar_table(study: Study, number: str) -> Table:
    """Appendix J: is SOFIM's lead over each baseline more than chance, record by record?"""
    name, halves = HALVES[number]
    rows: list[tuple[str, ...]] = []
    for table, backbone in halves.items():
        config = parse(compose([f"experiment=table{table}"]))
        y = load_divided(config)[0].test_y
        runs = accuracies(study, table)
        rows += [(backbone, *row) for row in _rows(runs, y, _published(name.lower(), backbone))]
    agree = sum(row[-2] == row[-1] for row in rows)
    header = (
        *("backbone", "eps", "baseline", "SOFIM %", "baseline %", "n10", "n01", "chi2", "p"),
        *("paper's n10", "n01", "chi2", "p", "result", "paper's result"),
    )
    title = (
        f"Table {number}: McNemar's test on {name} at round 70, seed {study.seeds[0]}. ↑ SOFIM is "
        "significantly better, † the baseline is, - neither; "
        f"{agree} of {len(rows)} as in the paper"
    )
    return Table(title, header, rows)


def _published(dataset: str, backbone: str) -> dict[tuple[float, str], dict[str, str]]:
    name = dataset.replace("-", "")
    return {
        (float(r["epsilon"]), r["baseline"]): r
        for r in paper("mcnemar")
        if (r["dataset"], r["backbone"]) == (name, backbone)
    }


def _rows(
    runs: dict[tuple[float, str], Runs], y: Array, theirs: dict[tuple[float, str], dict[str, str]]
) -> Iterator[tuple[str, ...]]:
    for e, m in runs:
        if m == "DP-FedSOFIM":
            continue
        ours, base = (runs[e, x].predictions[0] == y for x in ("DP-FedSOFIM", m))
        n10, n01 = int((ours & ~base).sum()), int((~ours & base).sum())
        chi2, p = mcnemar(n10, n01)
        r = theirs[e, m]
        their_n = int(r["n10"]), int(r["n01"])
        yield (
            *(f"{e:g}", m, f"{100 * ours.mean():.2f}", f"{100 * base.mean():.2f}"),
            *(str(n10), str(n01), f"{chi2:.2f}", f"{p:.2g}"),
            *(r["n10"], r["n01"], f"{float(r['chi2']):.2f}", r["p"]),
            *(symbol(n10, n01), symbol(*their_n)),
        )


def mcnemar(n10: int, n01: int) -> tuple[float, float]:
    """McNemar's statistic with continuity correction, and its p-value (chi-square, 1 df).

    >>> chi2, p = mcnemar(529, 700)
    >>> round(chi2, 3), p < 1e-4
    (23.515, True)
    """
    if n10 + n01 == 0:
        return 0.0, 1.0
    chi2 = max(0, abs(n10 - n01) - 1) ** 2 / (n10 + n01)
    return chi2, math.erfc(math.sqrt(chi2 / 2))


def symbol(n10: int, n01: int) -> str:
    """The paper's legend, at a level of 0.05.

    >>> symbol(914, 604), symbol(529, 700), symbol(5, 5)
    ('↑', '†', '-')
    """
    if mcnemar(n10, n01)[1] >= 0.05:
        return "-"
    return "↑" if n10 > n01 else "†"
