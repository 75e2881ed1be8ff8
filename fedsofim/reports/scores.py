"""How good the final model is, by class, by confidence and by client: a section of a run's page."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedsofim.reports.html import table
from fedsofim.reports.svg import COLOURS, label, opening, strip_plot

BLUE, ORANGE = COLOURS[:2]
MOST = 40  # classes with a bar of their own; the table has all


def section(scores: Mapping[str, Any] | None, clients: Sequence[Mapping[str, Any]]) -> str:
    """All of it, as HTML; nothing for a run without a test set.

    Args:
        scores: what `scores.json` holds.
        clients: what `clients.json` holds, in a simulation with one model for all.
    """
    if not scores:
        return ""
    return (
        f"<h2>By class and by confidence</h2><p>{_told(scores)}</p>"
        f'<div class="charts">{class_bars(scores["classes"])}{reliability(scores)}</div>'
        f"{_table(scores['classes'])}{_clients(clients)}"
    )


# What else is told of several runs, by the names that rows and summaries use.
NAMES = {
    "balanced_accuracy": "balanced accuracy %",
    "auc": "AUC",
    "calibration_error": "calibration error %",
    "client_accuracy_worst_decile": "worst tenth of clients %",
}


def comparison(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A table of other scores than accuracy: means over the runs of each setting.

    Args:
        runs: the last row, with the summary, of each run of a setting, by the setting's name.
    """

    def mean(rows: Sequence[Mapping[str, Any]], name: str) -> str:
        known = [row[name] for row in rows if row.get(name) is not None]
        scale, digits = (1, 4) if name == "auc" else (100, 2)
        return _number(scale * sum(known) / len(known) if known else None, digits)

    found = [(label, *(mean(rows, name) for name in NAMES)) for label, rows in runs.items()]
    if not any(any(cells) for _, *cells in found):
        return ""
    shown = table(("setting", *NAMES.values()), found)
    return f"<p>Other scores after the last round (means over seeds):</p>{shown}"


def _told(scores: Mapping[str, Any]) -> str:
    balanced, auc, error = (
        scores.get(k) for k in ("balanced_accuracy", "auc", "calibration_error")
    )
    parts = ["Of the model after the last round, on the test records."]
    if balanced is not None:
        parts.append(f"Balanced accuracy, the mean over classes: {100 * balanced:.2f} %.")
    if auc is not None:
        parts.append(f"Area under the ROC curve, each class against all others: {auc:.4f}.")
    if error is not None:
        parts.append(f"Expected calibration error, in 15 bins: {100 * error:.2f} points.")
    return " ".join(parts)


def class_bars(classes: Sequence[Mapping[str, Any]]) -> str:
    """A bar for each class: which part of its test records was predicted right."""
    drawn = [row for row in classes if row["accuracy"] is not None][:MOST]
    if not drawn:
        return ""
    width, left, right, top, row_h = 560, 76, 64, 36, 22
    height = top + row_h * len(drawn) + 12
    span, title = width - left - right, "Accuracy by class, %"
    out = [opening(width, height, title), label(left, 18, title, weight=600)]
    for i, row in enumerate(drawn):
        y, name = top + row_h * i, f"class {row['class']}"
        share = 100 * row["accuracy"]
        told = f"{name}: {share:.1f} % of {row['records']} records"
        out.append(label(left - 8, y + 13, name, "end"))
        out.append(
            f'<rect x="{left}" y="{y}" width="{span}" height="16" fill="currentColor" '
            f'fill-opacity=".07"/><rect x="{left}" y="{y}" width="{span * share / 100:.1f}" '
            f'height="16" fill="{BLUE}"><title>{escape(told)}</title></rect>'
        )
        out.append(label(left + span + 8, y + 13, f"{share:.1f}"))
    return "".join(out) + "</svg>"


def reliability(scores: Mapping[str, Any]) -> str:
    """How often predictions were right, by how sure the model was; right on the line is honest."""
    bins = [row for row in scores["calibration"] if row["accuracy"] is not None]
    if not bins:
        return ""
    width, height, left, right, top, bottom = 560, 320, 52, 14, 34, 42
    title = "Accuracy (bars) by confidence, %; on the dashed line they agree"
    most = max(row["records"] for row in bins)

    def px(x: float) -> float:
        return left + x * (width - left - right)

    def py(y: float) -> float:
        return height - bottom - y * (height - top - bottom)

    out = [opening(width, height, title), label(left, 18, title, weight=600)]
    for tick in range(0, 101, 20):
        at = tick / 100
        out.append(f'<path d="M{left} {py(at):.1f}H{width - right}" class="grid"/>')
        out.append(label(left - 6, py(at) + 4, str(tick), "end"))
        out.append(label(px(at), height - bottom + 16, str(tick), "middle"))
    for row in bins:
        low, high, share = px(row["from"]) + 1, px(row["to"]) - 1, row["accuracy"]
        told = f"{row['records']} records: {100 * share:.1f} % right"
        depth = 0.3 + 0.7 * row["records"] / most
        out.append(
            f'<rect x="{low:.1f}" y="{py(share):.1f}" width="{high - low:.1f}" '
            f'height="{py(0) - py(share):.1f}" fill="{BLUE}" fill-opacity="{depth:.2f}">'
            f"<title>{escape(told)}</title></rect>"
        )
    out.append(
        f'<path d="M{px(0):.1f} {py(0):.1f}L{px(1):.1f} {py(1):.1f}" stroke="{ORANGE}" '
        'stroke-width="2" stroke-dasharray="6 3"/>'
    )
    told = "confidence, % (stronger colour: more records)"
    out.append(label((left + width - right) / 2, height - 6, told, "middle"))
    return "".join(out) + "</svg>"


def _table(classes: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            str(row["class"]),
            str(row["records"]),
            _number(row["accuracy"] and 100 * row["accuracy"], 2),
            _number(row["auc"], 4),
        )
        for row in classes
    ]
    shown = table(("class", "test records", "accuracy %", "AUC"), rows)
    return f"<details><summary>As a table</summary>{shown}</details>"


def _clients(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    accuracies = {"one model": [100 * row["accuracy"] for row in rows]}
    chart = strip_plot(accuracies, title="Accuracy by client", x="accuracy, %")
    return (
        "<h2>By client</h2><p>The one model on test records in each client's own class "
        "proportions: a dot is a client, the bar is their mean. This is the simulator's knowledge: "
        f"no epsilon covers it.</p>{chart}"
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
