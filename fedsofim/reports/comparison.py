"""Tables that compare runs: accuracy by method and budget, and every score of each."""

from collections.abc import Sequence
from statistics import mean

from fedsofim.reports import names
from fedsofim.reports.curves import Curve, curve_points, grouped
from fedsofim.reports.page import paragraph, table
from fedsofim.reports.svg import Point
from fedsofim.runs.directory import Row

TARGET = 0.95  # of the best final accuracy, for the rounds that a method takes
TIE = 0.05  # points: what is this near to the best is as good
FEDGD = "DP-FedGD"
# What else is told of runs, by the names that rows and summaries use.
SCORES = {
    "balanced_accuracy": "balanced %",
    "auc": "AUC",
    "calibration_error": "calibration error %",
    "client_accuracy_worst_decile": "worst tenth of clients % (not covered)",
}


def _labels(curves: Sequence[Curve]) -> list[str]:
    return list(dict.fromkeys(curve.label for curve in curves))


def _finals(curves: Sequence[Curve]) -> dict[float | None, dict[str, list[Point]]]:
    """The mean curve of every setting, by budget."""
    budgets = sorted({c.budget for c in curves}, key=lambda b: float("inf") if b is None else b)
    labels = _labels(curves)
    return {
        budget: {
            label: curve_points(runs)
            for label, runs in grouped(curves, budget, labels).items()
            if runs
        }
        for budget in budgets
    }


def best_by_budget(curves: Sequence[Curve]) -> dict[float | None, tuple[list[str], float]]:
    """The best settings of each budget, and their accuracy in percent."""
    out: dict[float | None, tuple[list[str], float]] = {}
    for budget, groups in _finals(curves).items():
        best = max(points[-1].y for points in groups.values())
        out[budget] = ([k for k, v in groups.items() if best - v[-1].y < TIE], best)
    return out


def pivot_table(curves: Sequence[Curve]) -> str:
    """Final accuracy by setting and budget; the best of each budget stands out."""
    finals = _finals(curves)
    labels = sorted(
        _labels(curves), key=lambda k: -max(v[k][-1].y for v in finals.values() if k in v)
    )
    rows, best = [], []
    for r, label in enumerate(labels):
        cells = [label]
        for column, groups in enumerate(finals.values(), 1):
            last = groups[label][-1] if label in groups else None
            cells.append("" if last is None else _score(last))
            if last is not None and last.y == max(v[-1].y for v in groups.values()):
                best.append((r, column))
        rows.append(cells)
    told = "Test accuracy in % after the last round (mean ± standard deviation over seeds)."
    header = ("method", *(names.budget(budget) for budget in finals))
    return paragraph(told) + table(header, rows, label="Final accuracy", sortable=True, best=best)


def _score(last: Point) -> str:
    return f"{last.y:.2f}" + (f" ± {last.band:.2f}" if last.band else "")


def detail_table(curves: Sequence[Curve]) -> str:
    """A line for every setting and budget: accuracy, gaps, speed and other scores."""
    rows = []
    finals = _finals(curves)
    free = finals.get(None, {})
    for budget, groups in finals.items():
        best = max(points[-1].y for points in groups.values())
        for label, points in groups.items():
            runs = [c for c in curves if c.label == label and c.budget == budget]
            reached = next((f"{p.x:g}" for p in points if p.y >= TARGET * best), "never")
            rows.append(
                [
                    label,
                    "none" if budget is None else f"{budget:g}",
                    _score(points[-1]),
                    str(len(runs)),
                    _gap(points, groups.get(FEDGD)) if label != FEDGD else "",
                    _gap(points, free.get(label)) if budget is not None else "",
                    reached,
                    *_others(runs),
                ]
            )
    header = (
        *("method", "epsilon", "accuracy %", "seeds", f"against {FEDGD}, points"),
        *("against no privacy, points", f"rounds to {TARGET:.0%} of the best"),
        *SCORES.values(),
    )
    shown = [i for i in range(len(header)) if i < 4 or any(row[i] for row in rows)]
    return table(
        [header[i] for i in shown],
        [[row[i] for i in shown] for row in rows],
        label="Every score",
        sortable=True,
    )


def _gap(points: Sequence[Point], other: Sequence[Point] | None) -> str:
    return "" if not other else f"{points[-1].y - other[-1].y:+.2f}"


def _others(runs: Sequence[Curve]) -> list[str]:
    """What is known besides accuracy: means over the runs of a setting."""
    rows: list[Row] = [{**run.charged, **run.rows[-1]} for run in runs]
    out = []
    for name in SCORES:
        known = [row[name] for row in rows if row.get(name) is not None]
        scale, digits = (1, 4) if name == "auc" else (100, 2)
        out.append(f"{scale * mean(known):.{digits}f}" if known else "")
    return out
