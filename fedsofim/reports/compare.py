"""Several runs, or a whole sweep, on one page: self-contained HTML, no network, no script."""

import json
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import mean, stdev

from fedsofim.reports.curves import Curve, is_sweep, places, read, unscored
from fedsofim.reports.html import table
from fedsofim.reports.run_page import SIMULATOR, STYLE, heat_map_of
from fedsofim.reports.scores import comparison
from fedsofim.reports.svg import Point, line_chart, strip_plot, swatch
from fedsofim.runs.directory import Row
from fedsofim.studies.sweep import Sweep

TARGET = 0.95  # of the best final accuracy, for the rounds-to-target table
DRAWN = 12  # settings in a picture; of more, the best


def page(curves: Sequence[Curve], paths: Sequence[Path], counts: bool = False) -> str:
    """The page that compares these runs; with `counts`, also each client's exact class counts."""
    body = []
    for where in dict.fromkeys(curve.setting for curve in curves):
        here = [curve for curve in curves if curve.setting == where]
        body.append(f"<section><h2>{escape(where)}</h2>{_section(here)}</section>")
    if missing := ", ".join(escape(str(path)) for path in unscored(paths)):
        body.append(f"<p>Not drawn, since no round was scored: {missing}</p>")
    held = _partitions(paths) if counts else ""
    body += [_personal(paths), _charges(curves), held, _commands(paths)]
    title = f"{len(curves)} runs, {len(_labels(curves))} settings"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>fedsofim: {title}</title>"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main><h1>{title}</h1>"
        f"{''.join(body)}</main></body></html>\n"
    )


def _section(curves: Sequence[Curve]) -> str:
    """All that is shown of the runs on the same data."""
    labels, told = _labels(curves), ""
    if len(labels) > DRAWN:
        best = {k: max(c.final for c in curves if c.label == k) for k in labels}
        top = sorted(labels, key=lambda label: -best[label])[:DRAWN]
        told = f"<p>Drawn: the best {DRAWN} of {len(labels)} settings. The table has all.</p>"
        labels = [label for label in labels if label in top]
    legend = "".join(f"<li>{swatch(i)} {escape(name)}</li>" for i, name in enumerate(labels))
    budgets = dict.fromkeys(curve.budget for curve in curves if curve.label in labels)
    charts = [_convergence(curves, budget, labels) for budget in budgets]
    if len([budget for budget in budgets if budget]) > 1:
        charts.append(_frontier(curves, labels))
    charts += [_noise(curves, budget, labels) for budget in budgets]
    return (
        f'{told}<ul class="legend" aria-label="Legend">{legend}</ul>'
        f'<div class="charts">{"".join(charts)}</div>{_targets(curves)}{_other_scores(curves)}'
    )


def _other_scores(curves: Sequence[Curve]) -> str:
    """What is known besides accuracy, by setting and budget."""
    runs: dict[str, list[Row]] = {}
    for curve in curves:
        name = f"{curve.label}, {_name(curve.budget)}"
        runs.setdefault(name, []).append({**curve.charged, **curve.rows[-1]})
    return comparison(runs)


def _grouped(
    curves: Sequence[Curve], budget: float | None, labels: Sequence[str]
) -> dict[str, list[Curve]]:
    """The runs of one budget by label; a label without runs stays, so that colours agree."""
    return {
        label: [c for c in curves if c.label == label and c.budget == budget] for label in labels
    }


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _points(curves: Sequence[Curve]) -> list[Point]:
    """Mean accuracy in percent and its spread over seeds, by round."""
    rounds = sorted({row["round"] for curve in curves for row in curve.rows})
    points = []
    for t in rounds:
        values = [100 * r["accuracy"] for c in curves for r in c.rows if r["round"] == t]
        points.append(Point(t, mean(values), _spread(values)))
    return points


def _name(budget: float | None) -> str:
    if budget == 0:
        return "nothing sent"
    return "not private" if budget is None else f"epsilon {budget:g}"


def _convergence(curves: Sequence[Curve], budget: float | None, labels: Sequence[str]) -> str:
    series = {k: _points(v) for k, v in _grouped(curves, budget, labels).items()}
    return line_chart(series, title=f"Test accuracy (%) by round, {_name(budget)}", x="round")


def _noise(curves: Sequence[Curve], budget: float | None, labels: Sequence[str]) -> str:
    """How large the noise in the aggregate is beside the aggregate, where runs recorded it."""
    series: dict[str, list[Point]] = {}
    for label, runs in _grouped(curves, budget, labels).items():
        ratios: dict[int, list[float]] = {}
        for row in (row for run in runs for row in run.rows):
            if row.get("noise_norm") and row.get("gradient_norm"):
                share = row["noise_norm"] / row["gradient_norm"]
                ratios.setdefault(row["round"], []).append(share)
        series[label] = [Point(t, mean(v), _spread(v)) for t, v in sorted(ratios.items())]
    return line_chart(series, title=f"Noise over aggregate, {_name(budget)}", x="round")


def _frontier(curves: Sequence[Curve], labels: Sequence[str]) -> str:
    series: dict[str, list[Point]] = {label: [] for label in labels}
    for budget in sorted({c.budget for c in curves if c.budget}):
        for label, runs in _grouped(curves, budget, labels).items():
            if runs:
                last = _points(runs)[-1]
                series[label].append(Point(budget, last.y, last.band))
    title = "Final test accuracy (%) by epsilon"
    return line_chart(series, title=title, x="epsilon", log_x=True)


def _targets(curves: Sequence[Curve]) -> str:
    """Final accuracy, and the rounds it took to come close to the best one, by budget."""
    labels, budgets = _labels(curves), dict.fromkeys(curve.budget for curve in curves)
    columns: list[dict[str, tuple[str, str, bool]]] = []
    targets = []
    for budget in budgets:
        grouped = _grouped(curves, budget, labels)
        groups = {label: _points(runs) for label, runs in grouped.items() if runs}
        best = max(points[-1].y for points in groups.values())
        targets.append(f"{TARGET * best:.1f} %")
        columns.append({})
        for label, points in groups.items():
            reached = next((f"{p.x:g}" for p in points if p.y >= TARGET * best), "never")
            last = points[-1]
            finished = [run for run in grouped[label] if run.rows[-1]["round"] == last.x]
            spread = f" ± {last.band:.2f}" if len(finished) > 1 else ""
            columns[-1][label] = (f"{last.y:.2f}{spread}", reached, last.y == best)
    order = sorted(labels, key=lambda k: -max(c.final for c in curves if c.label == k))
    head = "".join(f'<th scope="colgroup" colspan="2">{_name(b)}</th>' for b in budgets)
    sub = '<th scope="col">accuracy %</th><th scope="col">rounds</th>' * len(budgets)
    body = []
    for label in order:
        cells = [column.get(label, ("", "", False)) for column in columns]
        shown = "".join(
            f"<td{' class=best' if top else ''}>{accuracy}</td><td>{rounds}</td>"
            for accuracy, rounds, top in cells
        )
        body.append(f'<tr><th scope="row">{escape(label)}</th>{shown}</tr>')
    return (
        f"<p>Final accuracy (mean ± std over seeds), and the rounds it took to {TARGET:.0%} of the "
        f"best ({', '.join(targets)}):</p>"
        '<div class="wide" tabindex="0"><table aria-label="Final accuracy and rounds">'
        f'<thead><tr><th rowspan="2" scope="col">setting</th>{head}</tr><tr>{sub}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _labels(curves: Sequence[Curve]) -> list[str]:
    return list(dict.fromkeys(curve.label for curve in curves))


def _personal(paths: Sequence[Path]) -> str:
    """A strip of dots for each run whose clients have models of their own."""
    strips = {
        path.name: [100 * row["accuracy"] for row in json.loads(file.read_text())]
        for path in paths
        if (file := path / "personal.json").is_file()
    }
    if not strips:
        return ""
    chart = strip_plot(strips, title="Accuracy (%) of each client's own model", x="accuracy, %")
    return f"<section><h2>Personal models</h2>{SIMULATOR}{chart}</section>"


def _charges(curves: Sequence[Curve]) -> str:
    """What the runs of each setting released, and what that cost."""
    rows = {}
    for curve in curves:
        c = curve.charged
        spent = "not private" if c["epsilon"] is None else f"{c['epsilon']:.4g}, {c['delta']:g}"
        clip = "none" if c["clip"] is None else f"{c['clip']:g}"
        cells = (f"{c['releases']:g}", clip, f"{c['noise_std']:.4g}", c["trust"], spent)
        rows[curve.label, cells] = (curve.label, *cells)
    header = ("setting", "releases", "clip", "noise std", "trust", "epsilon, delta")
    shown = table(header, list(rows.values()))
    if len(rows) > 3 * DRAWN:
        shown = f"<details><summary>{len(rows)} settings and budgets</summary>{shown}</details>"
    told = (
        "<p>Releases of a clipped sum that each record is charged for, and the noise on each:</p>"
    )
    return f"<section><h2>Released and charged</h2>{told}{shown}</section>"


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
        f'<h3>{escape(name)}</h3><div class="wide" tabindex="0">{heat_map_of(json.loads(text))}'
        "</div>"
        for text, name in found.items()
    )
    return f"<section><h2>Who holds what</h2>{SIMULATOR}{maps}</section>" if found else ""


def _commands(paths: Sequence[Path]) -> str:
    lines = []
    for path in paths:
        if is_sweep(path):
            lines.append(shlex.join(["fedsofim", "sweep", *Sweep.open(path).overrides]))
        elif (path / "command.txt").is_file():
            lines.append((path / "command.txt").read_text().strip())
    if not lines:
        return ""
    return f"<section><h2>To repeat</h2><pre>{escape(chr(10).join(lines))}</pre></section>"


def write(paths: Sequence[Path], out: Path, *, counts: bool = False) -> None:
    """Compare the runs in these directories on one page."""
    paths = places(paths)
    out.write_text(page(read(paths), paths, counts))
