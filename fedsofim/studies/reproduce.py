"""The paper's accuracies: what each table needs, and how it reads beside the paper's figures."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fedsofim.config.compose import EPSILONS, compose_many
from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array
from fedsofim.reports.tables import Score, Table, paper, score
from fedsofim.runs.directory import Row
from fedsofim.studies.processes import Jobs
from fedsofim.studies.results import Results, Show, curve_of, pack, unpack
from fedsofim.studies.stacks import Result

METHODS = {
    "DP-FedGD": "fedgd",
    "DP-FedAvg": "fedavg",
    "DP-FedFC": "fedfc",
    "DP-SCAFFOLD": "scaffold",
    "DP-FedAdam": "fedadam",
    "DP-FedYogi": "fedyogi",
    "DP-FTRL": "ftrl",
    "DP-AdaFedProx": "adafedprox",
    "DP-FedSOFIM": "sofim",
}
ROUNDS = (10, 20, 30, 40, 50, 60, 70)
RHOS = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
ABLATIONS = {
    "Grad-only": ["strategy.precondition=false", "strategy.beta=0"],
    "EMA-only": ["strategy.precondition=false"],
    "DP-FedSOFIM": [],
}
# The tables of accuracies on uneven clients.
DIRICHLET = ("3", "4", "5", "6")
# A gap to DP-FedGD reproduces if it is this near to the paper's, in points.
NEAR = 5.0
# The paper's accuracy by budget, method and round.
Theirs = dict[tuple[float, str, int], float]


class Runs(NamedTuple):
    """The runs of one cell over seeds: accuracy by round, and the last predictions."""

    accuracy: dict[int, list[float]]
    predictions: list[Array]

    def at(self, t: int) -> Score:
        """Mean and spread after round `t`."""
        return score(self.accuracy[t])


class Study(NamedTuple):
    """What the cells of all tables share.

    Attributes:
        results: the runs that are done; a run is run once, whichever tables ask for it.
        extra: overrides for every run.
        seeds: of every cell.
        show: told how many of the runs that a table asks for are done.
        jobs: processes, by default one for each core; or a cluster's.
    """

    results: Results
    extra: Sequence[str] = ()
    seeds: Sequence[int] = (0, 1, 2)
    show: Show | None = None
    jobs: Jobs = None

    def run(self, cells: Sequence[Sequence[str]]) -> list[Runs]:
        """The runs of each cell, given as overrides; all that are not known yet run together."""
        asked = ((*cell, *self.extra, f"seed={seed}") for cell in cells for seed in self.seeds)
        configs = _configs(tuple(asked))

        def keep(number: int, result: Result) -> Row:
            return curve_of(result) | {"predictions": pack(result.predictions)}

        rows = self.results.run(configs, keep, jobs=self.jobs, show=self.show)
        n = len(self.seeds)
        return [_over_seeds(rows[i * n : (i + 1) * n]) for i in range(len(cells))]


@cache
def _configs(asked: tuple[tuple[str, ...], ...]) -> list[Config]:
    """The configs of a table's runs; a figure of the same runs asks for them again."""
    return [parse(values) for values in compose_many(asked)]


def _over_seeds(rows: Sequence[Row]) -> Runs:
    accuracy: dict[int, list[float]] = {}
    for point in (point for row in rows for point in row["curve"]):
        accuracy.setdefault(point["round"], []).append(point["accuracy"])
    return Runs(accuracy, [unpack(row["predictions"]) for row in rows])


def cell(experiment: str, method: str, epsilon: float, *more: str) -> list[str]:
    """The overrides of one cell of a table."""
    strategy = METHODS[method]
    return [
        f"experiment={experiment}",
        f"strategy={strategy}",
        f"privacy.epsilon={epsilon:g}",
        *more,
    ]


def published(number: str) -> Theirs:
    """The paper's accuracies of one of Tables 3 to 6, 8 and 9."""
    return {
        (float(r["epsilon"]), r["method"], int(r["round"])): float(r["mean"])
        for r in paper("accuracy")
        if r["table"] == number
    }


def accuracies(study: Study, number: str) -> dict[tuple[float, str], Runs]:
    """The runs of one of Tables 3 to 6, 8 and 9, by budget and method."""
    theirs = published(number)
    methods = [m for m in METHODS if (EPSILONS[0], m, ROUNDS[0]) in theirs]
    keys = [(epsilon, method) for epsilon in EPSILONS for method in methods]
    runs = study.run([cell(f"table{number}", m, e) for e, m in keys])
    return dict(zip(keys, runs, strict=True))


def accuracy_table(study: Study, number: str) -> Table:
    """Tables 3 to 6, 8 and 9: accuracy by round, for each budget and method."""
    theirs, runs = published(number), accuracies(study, number)
    rows, near = [], 0
    for epsilon, method in runs:
        gap = runs[epsilon, method].at(70).mean - runs[epsilon, "DP-FedGD"].at(70).mean
        their_gap = theirs[epsilon, method, 70] - theirs[epsilon, "DP-FedGD", 70]
        cells = []
        for t in ROUNDS:
            cells += [str(runs[epsilon, method].at(t)), f"{theirs[epsilon, method, t]:.2f}"]
        same = abs(gap - their_gap) <= NEAR
        near += same
        shown = (f"{gap:+.2f}", f"{their_gap:+.2f}", f"{gap - their_gap:+.2f}")
        rows.append((f"{epsilon:g}", method, *cells, *shown, "yes" if same else "NO"))
    header = ("eps", "method", *(h for t in ROUNDS for h in (f"T={t}", "paper")))
    return Table(
        f"Table {number}: test accuracy (%) by round, ours and the paper's; gap to DP-FedGD, T=70; "
        f"{near} of {len(rows)} gaps within {NEAR:g} points",
        (*header, "gap", "paper's gap", "difference", f"within {NEAR:g}"),
        rows,
    )


def ablations(study: Study, number: str) -> dict[tuple[str, float], Runs]:
    """The runs of Table 10 or 11, by variant and budget."""
    experiment = {"10": "table3", "11": "table4"}[number]
    keys = [(variant, epsilon) for variant in ABLATIONS for epsilon in EPSILONS]
    cells = [cell(experiment, "DP-FedSOFIM", e, *ABLATIONS[v]) for v, e in keys]
    return dict(zip(keys, study.run(cells), strict=True))


def published_ablations(number: str) -> dict[tuple[str, float], Score]:
    """The paper's Table 10 or 11."""
    return {
        (r["variant"], float(r["epsilon"])): Score(float(r["mean"]), float(r["std"]))
        for r in paper("ablation")
        if r["table"] == number
    }


def ablation_table(study: Study, number: str) -> Table:
    """Tables 10 and 11: SOFIM without its preconditioner, and without its momentum as well."""
    ours, theirs = ablations(study, number), published_ablations(number)
    rows = [
        (v, *(s for e in EPSILONS for s in (str(ours[v, e].at(70)), str(theirs[v, e]))))
        for v in ABLATIONS
    ]
    header = ("variant", *(h for e in EPSILONS for h in (f"eps {e:g}", "paper")))
    return Table(f"Table {number}: ablation, accuracy (%) at round 70", header, rows)


def rho_table(study: Study) -> Table:
    """Table 12: SOFIM's accuracy as its regulariser changes."""
    keys = [(data, e, rho) for rho in RHOS for data in ("cifar10", "pathmnist") for e in (1, 5)]
    tables = {"cifar10": "table3", "pathmnist": "table4"}
    cells = [cell(tables[d], "DP-FedSOFIM", e, f"strategy.rho={rho}") for d, e, rho in keys]
    ours = dict(zip(keys, study.run(cells), strict=True))
    theirs = {
        (r["dataset"], float(r["epsilon"]), float(r["rho"])): f"{r['mean']}±{r['std']}"
        for r in paper("rho_sensitivity")
    }
    columns = [(data, e) for data in tables for e in (1, 5)]
    rows = [
        (
            f"{rho:g}",
            *(s for d, e in columns for s in (str(ours[d, e, rho].at(70)), theirs[d, e, rho])),
        )
        for rho in RHOS
    ]
    header = ("rho", *(h for d, e in columns for h in (f"{d} eps {e}", "paper")))
    return Table("Table 12: sensitivity to rho, accuracy (%) at round 70", header, rows)


def rounds_table(study: Study) -> Table:
    """Section 5.3.1: rounds until a method has 95 % of DP-FedGD's final accuracy."""
    both = [(number, accuracies(study, number), published(number)) for number in DIRICHLET]
    rows = []
    for epsilon, method in both[0][1]:
        cells: list[str] = []
        for _, runs, theirs in both:
            fedgd = runs[epsilon, "DP-FedGD"].at(70).mean
            ours = {t: runs[epsilon, method].at(t).mean for t in ROUNDS}
            their = {t: theirs[epsilon, method, t] for t in ROUNDS}
            cells += [first_round(ours, fedgd), first_round(their, theirs[epsilon, "DP-FedGD", 70])]
        rows.append((f"{epsilon:g}", method, *cells))
    header = ("eps", "method", *(h for n in DIRICHLET for h in (f"table {n}", "paper")))
    return Table("Rounds to 95 % of DP-FedGD's accuracy at round 70, of 10, 20, …", header, rows)


def first_round(accuracy: dict[int, float], final: float) -> str:
    """The first recorded round at 95 % of `final`, or a dash.

    >>> first_round({10: 40.0, 20: 57.5, 30: 59.0}, 60.0)
    '20'
    """
    return next((str(t) for t, value in accuracy.items() if value >= 0.95 * final), "-")
