"""How good the final model is, by class, by confidence and by client: sections of a run's page."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedsofim.reports.charts import bars, calibration, dots, grid, matrix
from fedsofim.reports.page import folded, paragraph, table, uncovered

MOST = 60  # classes with a bar and a row of the matrix; the table has all


def how_good(scores: Mapping[str, Any] | None, named: Sequence[str], whose: str = "") -> str:
    """By class and by confidence, as HTML; nothing for a run without a test set.

    Args:
        scores: what `scores.json` holds.
        named: what the classes are called.
        whose: why no epsilon covers the scores, if none does.
    """
    if not scores:
        return ""
    return (
        (uncovered(whose) if whose else "")
        + paragraph(_told(scores, named))
        + grid(_classes(scores["classes"], named), _confusion(scores, named))
        + grid(_calibration(scores))
        + folded("All classes as a table", _table(scores["classes"], named))
    )


def _told(scores: Mapping[str, Any], named: Sequence[str]) -> str:
    balanced, auc = scores.get("balanced_accuracy"), scores.get("auc")
    known = [row for row in scores["classes"] if row["accuracy"] is not None]
    parts = ["Of the model after the last round, on the test records."]
    if len(known) > 1:
        best, worst = (f(known, key=lambda row: row["accuracy"]) for f in (max, min))
        parts.append(
            f"It knows {named[best['class']]} best ({100 * best['accuracy']:.1f} % right) and "
            f"{named[worst['class']]} least ({100 * worst['accuracy']:.1f} %)."
        )
    if balanced is not None:
        parts.append(f"Balanced accuracy, the mean over classes: {100 * balanced:.2f} %.")
    if auc is not None:
        parts.append(f"Area under the ROC curve, each class against all others: {auc:.4f}.")
    return " ".join(parts)


def _classes(classes: Sequence[Mapping[str, Any]], named: Sequence[str]) -> str:
    known = [row for row in classes if row["accuracy"] is not None][:MOST]
    rows = [
        (
            named[row["class"]],
            100 * row["accuracy"],
            f"{100 * row['accuracy']:.1f} % of {row['records']} records",
        )
        for row in known
    ]
    about = "Part of each class's test records that are told right."
    return bars("Accuracy by class", rows, x="accuracy, %", about=about)


def _confusion(scores: Mapping[str, Any], named: Sequence[str]) -> str:
    counts = scores.get("confusion") or []
    if not counts or len(counts) > MOST:
        return ""
    about = "What test records of each class (rows) are taken for (columns). The diagonal is right."
    return matrix(
        "Confusion matrix",
        counts,
        rows=named,
        columns=named,
        x="taken for",
        y="true class",
        about=about,
        square=True,
    )


def _calibration(scores: Mapping[str, Any]) -> str:
    error = scores.get("calibration_error")
    told = "" if error is None else f" On average they differ by {100 * error:.2f} points."
    about = (
        "On the dashed line the model is as sure as it is right; below, it is too sure. Stronger "
        f"bars hold more records.{told}"
    )
    return calibration("Can its confidence be believed?", scores["calibration"], about=about)


def _table(classes: Sequence[Mapping[str, Any]], named: Sequence[str]) -> str:
    rows = [
        (
            named[row["class"]],
            str(row["records"]),
            _number(row["accuracy"], 2, 100),
            _number(row["auc"], 4),
        )
        for row in classes
    ]
    header = ("class", "test records", "accuracy %", "AUC")
    return table(header, rows, label="Scores by class", sortable=True)


def by_client(rows: Sequence[Mapping[str, Any]], mark: str) -> str:
    """The one model on each client's own classes; only a simulator knows."""
    if not rows:
        return ""
    worst, best = (f(row["accuracy"] for row in rows) for f in (min, max))
    told = f"From {100 * worst:.1f} % to {100 * best:.1f} % right."
    about = (
        "The one model on test records in each client's own class proportions: a dot is a client, "
        "the bar is their mean."
    )
    values = {"one model": [(f"client {row['client']}", 100 * row["accuracy"]) for row in rows]}
    chart = dots("Accuracy by client", values, x="accuracy, %", about=f"{about} {told}")
    header = ("client", "records", "classes", "test records", "accuracy %")
    cells = [
        [str(row["client"]), str(row["records"]), str(row["classes"]), str(row["test_records"]),
         f"{100 * row['accuracy']:.2f}"]
        for row in rows
    ]  # fmt: skip
    shown = table(header, cells, label="Scores by client", sortable=True)
    return uncovered(mark) + chart + folded("All clients", shown)


def _number(value: float | None, digits: int, scale: float = 1) -> str:
    return "" if value is None else f"{scale * value:.{digits}f}"
