"""Bound and run together: what a simulation measured beside what the paper proves."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from fedsofim.core.errors import require
from fedsofim.reports.html import table
from fedsofim.reports.svg import Point, label, line_chart, opening, swatch
from fedsofim.runs.directory import THEORY, Row, RunDir

NOT_PRIVATE = (
    "Not private: for simulations. It reads all records without clip and noise, and no epsilon "
    "covers it."
)
RUN, BOUND, FLOOR, PATH = "the run", "the bound", "its floor", "the bound with each round's values"


class Measured(NamedTuple):
    """What a run left of its theory.

    Attributes:
        name: of the run.
        rows: one a round.
        told: constants and theorems.
    """

    name: str
    rows: list[Row]
    told: Row

    def theorem(self) -> Row | None:
        """The first theorem about the gap whose conditions hold."""
        return next((t for t in self.told["theorems"] if "path" in t), None)


def read(path: Path) -> Measured:
    """The theory of a finished run."""
    place = RunDir.open(path)
    require(
        (path / "theory.json").is_file() and bool(place.rows(THEORY)),
        f"{path}: holds no theory; run it with output.theory=true",
    )
    return Measured(path.name, place.rows(THEORY), place.read_json("theory.json"))


def _line(values: Sequence[float], first: int = 0) -> list[Point]:
    return [Point(first + i, value) for i, value in enumerate(values)]


def gap_chart(run: Measured, title: str = "") -> str:
    """F - F* by round, below what bounds it; logarithmic."""
    theorem = run.theorem()
    if theorem is None:
        return ""
    level = [theorem["floor"]] * len(theorem["run"])
    series = {RUN: theorem["run"], PATH: theorem["path"], BOUND: theorem["bound"], FLOOR: level}
    told = title or f"F - F*, and Theorem {theorem['theorem']}"
    return line_chart({k: _line(v) for k, v in series.items()}, title=told, x="rounds", log_y=True)


def stationarity_chart(run: Measured) -> str:
    """The mean squared gradient norm so far, below Theorem 4.31; logarithmic."""
    found = [t for t in run.told["theorems"] if t["theorem"].startswith("4.31")]
    if not found:
        return ""
    series = {RUN: _line(found[0]["run"], 1), "": [], BOUND: _line(found[0]["bound"], 1)}
    title = "Mean squared gradient norm, and Theorem 4.31"
    return line_chart(series, title=title, x="rounds", log_y=True)


NORMS = {
    "gradient_norm": "true gradient",
    "clip_bias": "clipping bias",
    "noise_norm": "noise in the aggregate",
    "momentum_norm": "M",
}


def norm_chart(run: Measured) -> str:
    """The paper's quantities by round; logarithmic."""
    series = {name: _column(run, key) for key, name in NORMS.items()}
    return line_chart(series, title="Norms by round", x="round", log_y=True)


def cosine_chart(run: Measured) -> str:
    """How the step and the aggregate lie to the true gradient."""
    names = {"cosine_step": "step", "cosine_aggregate": "aggregate"}
    series = {name: _column(run, key) for key, name in names.items()}
    return line_chart(series, title="Cosine with the true gradient", x="round")


def condition_chart(run: Measured) -> str:
    """The preconditioner's condition number by round."""
    points = _column(run, "condition")
    return line_chart({"H": points}, title="Condition number of the preconditioner", x="round")


def _column(run: Measured, key: str) -> list[Point]:
    return [Point(row["round"], row[key]) for row in run.rows if row.get(key) is not None]


def section(run: Measured | None) -> str:
    """A section of a run's page."""
    if run is None:
        return ""
    bounds = [gap_chart(run), stationarity_chart(run)]
    return (
        f"<h2>Theory, measured</h2><p class=warn>{NOT_PRIVATE}</p>{_departures(run)}"
        f"{_legend([RUN, PATH, BOUND, FLOOR])}"
        f'<div class="charts">{"".join(bounds)}</div>{_legend(list(NORMS.values()))}'
        f'<div class="charts">{norm_chart(run)}{cosine_chart(run)}{condition_chart(run)}</div>'
        f"<p>In the second of these, blue is the step and orange the aggregate.</p>"
        f"{_theorems(run.told)}{_constants(run.told)}"
    )


def _departures(run: Measured) -> str:
    away = "; ".join(run.told["departures"])
    if not away:
        return "<p>The steps are those that the theorems are about.</p>"
    told = "The theorems are about other steps than this run's, and only a guide:"
    return f"<p>{told} {escape(away)}.</p>"


def _legend(names: Sequence[str]) -> str:
    items = "".join(f"<li>{swatch(i)} {escape(name)}</li>" for i, name in enumerate(names))
    return f'<ul class="legend" aria-label="Legend">{items}</ul>'


def _theorems(told: Mapping[str, Any]) -> str:
    """A line for every theorem: its floor, what that consists of, and where the run stands."""
    names = (
        "theorem",
        "under",
        "floor",
        *TERMS,
        "bound at the end",
        "run at the end",
        "run / bound",
    )
    rows = [_theorem(t) for t in told["theorems"]]
    return table(names, rows)


TERMS = ("coupling", "clipping", "noise", "smoothness")


def _theorem(t: Mapping[str, Any]) -> list[str]:
    """The cells of a theorem's line."""
    if "floor" not in t:
        return [t["theorem"], "; ".join(t["why_not"])]
    numbers = [t["floor"], *(t["terms"][name] for name in TERMS), t["bound"][-1], t["run"][-1]]
    return [t["theorem"], t["under"], *(f"{v:.4g}" for v in [*numbers, t["run_over_bound"]])]


def _constants(told: Mapping[str, Any]) -> str:
    rows = [[name, f"{c['value']:.6g}", c["how"]] for name, c in told.get("constants", {}).items()]
    return table(("constant", "value", "how"), rows)


def lines(run: Measured) -> list[str]:
    """A run's theorems as text."""
    out = [f"{run.name} ({NOT_PRIVATE})"]
    out += [f"  not as analysed: {why}" for why in run.told["departures"]]
    for name, c in run.told.get("constants", {}).items():
        out.append(f"  {name:<9}{c['value']:<12.6g}{c['how']}")
    for t in run.told["theorems"]:
        if "floor" not in t:
            out.append(f"  Theorem {t['theorem']}: does not hold: {'; '.join(t['why_not'])}")
            continue
        terms = ", ".join(f"{name} {t['terms'][name]:.3g}" for name in TERMS)
        out.append(
            f"  Theorem {t['theorem']}: the run ends at {t['run'][-1]:.4g}, the bound at "
            f"{t['bound'][-1]:.4g}; floor {t['floor']:.4g} ({terms})"
        )
    return out


def figure(runs: Sequence[Measured]) -> str:
    """A panel for each run, bound and run together, as one picture with its legend."""
    panels = []
    for run in runs:
        theorem = run.theorem()
        require(theorem is not None, f"{run.name}: none of the theorems about the gap holds for it")
        assert theorem is not None
        panels.append(gap_chart(run, f"{run.name}: F - F*, and Theorem {theorem['theorem']}"))
    columns, width, height, top = min(2, len(panels)), 560, 320, 54
    rows = -(-len(panels) // columns)
    out = [opening(columns * width, top + rows * height, "Bound and run, by round")]
    out.append('<rect width="100%" height="100%" fill="#fff"/><g color="#222">')
    title = "Bound and run (not private: for simulations)"
    out.append(label(12, 18, title, weight=600))
    for i, name in enumerate((RUN, PATH, BOUND, FLOOR)):
        at = 12 + (0, 100, 360, 470)[i]
        piece = swatch(i).replace("<svg ", f'<svg x="{at}" y="32" ', 1)
        out.append(piece + label(at + 34, 42, name))
    for i, panel in enumerate(panels):
        corner = f'x="{i % columns * width}" y="{top + i // columns * height}"'
        out.append(panel.replace("<svg ", f"<svg {corner} ", 1))
    return "".join(out) + "</g></svg>\n"
