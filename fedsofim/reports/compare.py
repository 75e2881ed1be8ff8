"""Several runs, or a whole sweep, on one page: which method is best, first of all."""

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from statistics import mean

from fedsofim import __version__
from fedsofim.reports import names
from fedsofim.reports.charts import dots, grid
from fedsofim.reports.comparison import best_by_budget, detail_table, pivot_table
from fedsofim.reports.curves import Curve, curve_points, grouped, is_sweep, places, read, unscored
from fedsofim.reports.lines import lines
from fedsofim.reports.page import folded, header, page, paragraph, section, table, uncovered
from fedsofim.reports.run_page import SIMULATOR, held_chart
from fedsofim.reports.svg import Point
from fedsofim.studies.sweep import Sweep

DRAWN = 12  # settings in a picture; of more, the best
OPEN = 4  # data sets whose sections are unfolded


def page_of(
    curves: Sequence[Curve],
    paths: Sequence[Path],
    counts: bool = False,
    *,
    top: str = "",
    every: int = 0,
) -> str:
    """The page that compares these runs.

    Args:
        curves: the runs.
        paths: where they came from.
        counts: whether to show each client's exact class counts.
        top: what stands below the headline, as HTML.
        every: milliseconds after which the page asks for itself anew.
    """
    settings = list(dict.fromkeys(curve.setting for curve in curves))
    body = []
    for number, where in enumerate(settings):
        here = _section([curve for curve in curves if curve.setting == where])
        title = names.where(where)
        folds = number >= OPEN
        body.append(folded(title, here) if folds else section(title, here, f"setting-{number}"))
    if missing := ", ".join(str(path) for path in unscored(paths)):
        body.append(paragraph(f"Not drawn, since no round was scored: {missing}", "soft"))
    held = _partitions(paths) if counts else ""
    body += [_personal(paths), _charges(curves), held, _commands(paths)]
    runs, methods = len(curves), len(_labels(curves))
    title = f"{runs} runs, {methods} settings"
    answer = _answer([c for c in curves if c.setting == settings[0]], len(settings))
    now = datetime.now(UTC)
    head = (
        header(title, answer, [f"{now:%Y-%m-%d %H:%M} UTC", f"fedsofim {__version__}"])
        + f'{top}<div id="results"></div>'
    )
    return page(f"fedsofim: {title}", head + "".join(body), every=every)


def _answer(curves: Sequence[Curve], settings: int) -> str:
    """Who is best, at which budget, in one sentence."""
    told = []
    for budget, (labels, value) in best_by_budget(curves).items():
        who = ", ".join(labels) if len(labels) < 4 else f"{len(labels)} settings alike"
        told.append(f"{value:.1f} % at {names.budget(budget)} ({who})")
    where = names.data(curves[0].setting.partition(",")[0])
    more = f". {settings - 1} more settings are below" if settings > 1 else ""
    few = told if len(told) < 3 else [told[0], told[-1]]  # the table has those between
    listed = " and ".join(filter(None, [", ".join(few[:-1]), few[-1]]))
    return f"On {where} the best reach {listed}{more}."


def _section(curves: Sequence[Curve]) -> str:
    """All that is shown of the runs on the same data: tables first."""
    labels, told = _labels(curves), ""
    if len(labels) > DRAWN:
        best = {k: max(c.final for c in curves if c.label == k) for k in labels}
        top = sorted(labels, key=lambda label: -best[label])[:DRAWN]
        told = f"Drawn: the best {DRAWN} of {len(labels)} settings. The table has all."
        labels = [label for label in labels if label in top]
    places_ = {label: i for i, label in enumerate(labels)}
    budgets = list(dict.fromkeys(c.budget for c in curves if c.label in labels))
    drawn = [_convergence(curves, budget, places_) for budget in budgets]
    if len([budget for budget in budgets if budget]) > 1:
        drawn.insert(0, _frontier(curves, places_))
    noise = grid(*(_noise(curves, budget, places_) for budget in budgets))
    return (
        pivot_table(curves)
        + paragraph(told, "soft")
        + grid(*drawn)
        + folded("Every score, by method and epsilon", detail_table(curves))
        + folded("How loud the noise is", noise)
    )


def _convergence(curves: Sequence[Curve], budget: float | None, at: Mapping[str, int]) -> str:
    series = {k: curve_points(v) for k, v in grouped(curves, budget, list(at)).items()}
    about = "Mean over seeds; the band is one standard deviation."
    return lines(
        f"Test accuracy by round, {names.budget(budget)}",
        series, x="round", y="accuracy, %", unit=" %", about=about, places=at,
    )  # fmt: skip


def _noise(curves: Sequence[Curve], budget: float | None, at: Mapping[str, int]) -> str:
    """How large the noise in the aggregate is beside the aggregate, where runs recorded it."""
    series: dict[str, list[Point]] = {}
    for label, runs in grouped(curves, budget, list(at)).items():
        ratios: dict[int, list[float]] = {}
        for row in (row for run in runs for row in run.rows):
            if row.get("noise_norm") and row.get("gradient_norm"):
                share = 100 * row["noise_norm"] / row["gradient_norm"]
                ratios.setdefault(row["round"], []).append(share)
        series[label] = [Point(t, mean(v)) for t, v in sorted(ratios.items())]
    return lines(
        f"Noise over aggregate, {names.budget(budget)}",
        series, x="round", y="noise, % of the aggregate's length", unit=" %", digits=1, places=at,
        about="Near 100 %, a round tells little but noise.",
    )  # fmt: skip


def _frontier(curves: Sequence[Curve], at: Mapping[str, int]) -> str:
    series: dict[str, list[Point]] = {label: [] for label in at}
    for budget in sorted({c.budget for c in curves if c.budget}):
        for label, runs in grouped(curves, budget, list(at)).items():
            if runs:
                last = curve_points(runs)[-1]
                series[label].append(Point(budget, last.y, last.band))
    about = "After the last round. Further left protects more."
    return lines(
        "What privacy costs: accuracy by epsilon",
        series, x="epsilon", y="accuracy, %", unit=" %", about=about, log_x=True, places=at,
    )  # fmt: skip


def _labels(curves: Sequence[Curve]) -> list[str]:
    """The settings, those of DP-FedSOFIM first: they are drawn on top, in one colour everywhere."""
    found = dict.fromkeys(curve.label for curve in curves)
    return sorted(found, key=lambda label: "FedSOFIM" not in label)


def _personal(paths: Sequence[Path]) -> str:
    """A strip of dots for each run whose clients have models of their own."""
    strips = {
        path.name: [
            (f"client {row['client']}", 100 * row["accuracy"])
            for row in json.loads(file.read_text())
        ]
        for path in paths
        if (file := path / "personal.json").is_file()
    }
    if not strips:
        return ""
    chart = dots("Accuracy of each client's own model", strips, x="accuracy, %")
    return section("Personal models", uncovered(SIMULATOR) + chart)


def _charges(curves: Sequence[Curve]) -> str:
    """What the runs of each setting released, and what that cost."""
    rows = {}
    for curve in curves:
        c = curve.charged
        spent = "not private" if c["epsilon"] is None else f"{c['epsilon']:.4g}"
        delta = "" if c["delta"] is None or c["epsilon"] is None else names.small(c["delta"])
        clip = "none" if c["clip"] is None else f"{c['clip']:g}"
        cells = (f"{c['releases']:g}", clip, f"{c['noise_std']:.4g}", c["trust"], spent, delta)
        rows[curve.label, cells] = (curve.label, *cells)
    header = ("setting", "releases", "clip", "noise std", "trust", "epsilon", "delta")
    shown = table(header, list(rows.values()), label="Released and charged", sortable=True)
    told = "Releases of a clipped sum that each record is charged for, and the noise on each."
    inside = folded(f"{len(rows)} settings and budgets", shown, paper=True)
    return section("Released and charged", paragraph(told) + inside)


def _partitions(paths: Sequence[Path]) -> str:
    """Who held what, once for each division: in a sweep, that of the first seed."""
    found: dict[str, str] = {}
    for path in paths:
        file = path / "partition.json"
        if is_sweep(path):
            for where, partition in Sweep.open(path).partitions().items():
                found.setdefault(json.dumps(partition), where)
        elif file.is_file() and "counts" in (partition := json.loads(file.read_text())):
            found.setdefault(json.dumps(partition), path.name)
    maps = "".join(
        held_chart(json.loads(text), title=f"Records by client and class: {name}")
        for text, name in found.items()
    )
    return section("Who holds what", uncovered(SIMULATOR) + maps) if found else ""


def _commands(paths: Sequence[Path]) -> str:
    lines_ = []
    for path in paths:
        if is_sweep(path):
            lines_.append(shlex.join(["fedsofim", "sweep", *Sweep.open(path).overrides]))
        elif (path / "command.txt").is_file():
            lines_.append((path / "command.txt").read_text().strip())
    text = f"<pre>{escape(chr(10).join(lines_))}</pre>" if lines_ else ""
    return section("To repeat", text)


def write(paths: Sequence[Path], out: Path, *, counts: bool = False) -> None:
    """Compare the runs in these directories on one page."""
    paths = places(paths)
    out.write_text(page_of(read(paths), paths, counts))
