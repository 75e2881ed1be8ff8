"""Several runs, or a whole sweep, on one page: self-contained HTML, no network, no script."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from fedsofim.compose import compose_many
from fedsofim.config import ConfigError, require
from fedsofim.report import STYLE, heat_map_of
from fedsofim.rundir import Row, RunDir
from fedsofim.svg import Point, line_chart, strip_plot, swatch

TARGET = 0.95  # of the best final accuracy, for the rounds-to-target table


class Curve(NamedTuple):
    """One run, as the page needs it.

    Attributes:
        label: what it is compared as; runs that differ in their seed alone have the same.
        scene: the data and the division that it was run on.
        budget: the epsilon it was given; `None` without privacy.
        rows: its metrics.
    """

    label: str
    scene: str
    budget: float | None
    rows: list[Row]


def read(paths: Sequence[Path]) -> list[Curve]:
    """The runs in these directories, each a run's or a sweep's."""
    configs, rows = [], []
    for path in paths:
        if (path / "sweep.json").is_file():
            from fedsofim.sweep import Sweep

            sweep = Sweep(path, json.loads((path / "sweep.json").read_text()))
            done = sweep.finished()
            values = list(compose_many(sweep.combinations))
            configs += [values[i] for i in sorted(done)]
            rows += [done[i] for i in sorted(done)]
        else:
            place = RunDir.open(path)
            configs.append(place.config())
            rows.append(place.metrics())
    if not any(rows):
        raise ConfigError(f"{', '.join(map(str, paths))}: no finished round to report")
    told = _differences(configs)
    return [
        Curve(label, _scene(config), _budget(config), row)
        for config, label, row in zip(configs, told, rows, strict=True)
        if row
    ]


def _differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each config: its strategy, and what else sets it apart within that strategy."""
    flat = [dict(_flatten(config)) for config in configs]
    apart = ("strategy.name", "privacy.epsilon", "seed")
    labels = []
    for one in flat:
        same = [other for other in flat if other["strategy.name"] == one["strategy.name"]]
        # Only values that differ between runs of the same budget and scene are worth a word.
        rivals = [o for o in same if o["privacy.epsilon"] == one["privacy.epsilon"]]
        keys = [
            key
            for key in one
            if key not in apart
            and not key.startswith(("output.", "dataset.", "partition."))
            and len({str(o.get(key)) for o in rivals}) > 1
        ]
        words = [f"{key.rpartition('.')[2]} {one[key]}" for key in keys]
        labels.append(", ".join([str(one["strategy.name"]), *words]))
    return labels


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _scene(config: Mapping[str, Any]) -> str:
    partition = config["partition"]
    detail = f" {partition['alpha']}" if partition["kind"] == "dirichlet" else ""
    clients = f"{partition['clients']} clients"
    return f"{config['dataset']['name']}, {clients}, {partition['kind']}{detail}"


def _budget(config: Mapping[str, Any]) -> float | None:
    epsilon = float(config["privacy"]["epsilon"])
    return None if epsilon == float("inf") else epsilon


def page(curves: Sequence[Curve], paths: Sequence[Path]) -> str:
    """The page that compares these runs."""
    labels = list(dict.fromkeys(curve.label for curve in curves))
    legend = "".join(f"<li>{swatch(i)} {escape(name)}</li>" for i, name in enumerate(labels))
    body = []
    for scene in dict.fromkeys(curve.scene for curve in curves):
        here = [curve for curve in curves if curve.scene == scene]
        body.append(f"<section><h2>{escape(scene)}</h2>")
        body.append(f'<ul class="legend" aria-label="Legend">{legend}</ul><div class="charts">')
        budgets = list(dict.fromkeys(curve.budget for curve in here))
        for budget in budgets:
            body.append(_convergence(here, budget, labels))
        if len(budgets) > 1:
            body.append(_frontier(here, labels))
        body += [_noise(here, budget, labels) for budget in budgets]
        body.append("</div>")
        body += [_targets(here, budget) for budget in budgets]
        body.append("</section>")
    body.append(_personal(paths))
    body.append(_charges(paths))
    body.append(_partitions(paths))
    body.append(_commands(paths))
    title = f"{len(curves)} runs, {len(labels)} settings"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>fedsofim: {title}</title>"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main><h1>{title}</h1>"
        f"{''.join(body)}</main></body></html>\n"
    )


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
    for budget in sorted({c.budget for c in curves if c.budget is not None}):
        for label, runs in _grouped(curves, budget, labels).items():
            if runs:
                last = _points(runs)[-1]
                series[label].append(Point(budget, last.y, last.band))
    title = "Final test accuracy (%) by epsilon"
    return line_chart(series, title=title, x="epsilon", log_x=True)


def _targets(curves: Sequence[Curve], budget: float | None) -> str:
    """Final accuracy, and the rounds it took to come close to the best one."""
    groups = {k: _points(v) for k, v in _grouped(curves, budget, _labels(curves)).items() if v}
    best = max(points[-1].y for points in groups.values())
    rows = []
    for label, points in sorted(groups.items(), key=lambda item: -item[1][-1].y):
        reached = next((f"{p.x:g}" for p in points if p.y >= TARGET * best), "not reached")
        last = points[-1]
        rows.append((label, f"{last.y:.2f}", f"{last.band:.2f}", reached))
    caption = f"{_name(budget)}: final accuracy, and rounds to {TARGET * best:.1f} %"
    return _table(caption, ("setting", "accuracy %", "std over seeds", "rounds to target"), rows)


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
    return f"<section><h2>Personal models</h2>{chart}</section>"


def _charges(paths: Sequence[Path]) -> str:
    """What each run released, and what that cost."""
    rows = []
    for path in paths:
        if not (path / "summary.json").is_file():
            continue
        s = json.loads((path / "summary.json").read_text())
        spent = "not private" if s["epsilon"] is None else f"{s['epsilon']:.4g}, {s['delta']:g}"
        noise = f"{s['noise_std']:.4g}"
        rows.append((path.name, f"{s['releases']:g}", str(s["clip"]), noise, s["trust"], spent))
    if not rows:
        return ""
    header = ("run", "releases of each record", "clip", "noise std", "trust", "epsilon, delta")
    return f"<section><h2>Released and charged</h2>{_table('', header, rows)}</section>"


def _partitions(paths: Sequence[Path]) -> str:
    seen, out = set(), []
    for path in paths:
        file = path / "partition.json"
        if file.is_file() and (text := file.read_text()) not in seen:
            seen.add(text)
            out.append(f'<div class="wide">{heat_map_of(json.loads(text))}</div>')
    return f"<section><h2>Who holds what</h2>{''.join(out)}</section>" if out else ""


def _commands(paths: Sequence[Path]) -> str:
    lines = []
    for path in paths:
        if (path / "sweep.json").is_file():
            lines.append(
                " ".join(["fedsofim sweep", *json.loads((path / "sweep.json").read_text())])
            )
        elif (path / "command.txt").is_file():
            lines.append((path / "command.txt").read_text().strip())
    if not lines:
        return ""
    return f"<section><h2>To repeat</h2><pre>{escape(chr(10).join(lines))}</pre></section>"


def _table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in header)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    told = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="wide"><table>{told}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def write(paths: Sequence[Path], out: Path) -> None:
    """Compare the runs in these directories on one page."""
    for path in paths:
        require(path.is_dir(), f"{path}: there is no such directory")
    out.write_text(page(read(paths), paths))
