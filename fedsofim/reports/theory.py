"""Bound and run together: what a simulation measured beside what the paper proves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsofim.core.errors import require
from fedsofim.reports.charts import grid
from fedsofim.reports.lines import lines as chart
from fedsofim.reports.page import paragraph, table, warning
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


def _gap(theorem: Row) -> dict[str, list[Point]]:
    """F - F* by round, below what bounds it."""
    level = [theorem["floor"]] * len(theorem["run"])
    series = {RUN: theorem["run"], PATH: theorem["path"], BOUND: theorem["bound"], FLOOR: level}
    return {k: _line(v) for k, v in series.items()}


def gap_chart(run: Measured) -> str:
    """F - F* by round, below what bounds it; logarithmic."""
    theorem = run.theorem()
    if theorem is None:
        return ""
    title = f"F - F*, and Theorem {theorem['theorem']}"
    return chart(title, _gap(theorem), x="rounds", y="F - F*", log_y=True, digits=5)


def stationarity_chart(run: Measured) -> str:
    """The mean squared gradient norm so far, below Theorem 4.31; logarithmic."""
    found = [t for t in run.told["theorems"] if t["theorem"].startswith("4.31")]
    if not found:
        return ""
    series = {RUN: _line(found[0]["run"], 1), BOUND: _line(found[0]["bound"], 1)}
    title = "Mean squared gradient norm, and Theorem 4.31"
    return chart(title, series, x="rounds", y="squared norm", log_y=True, digits=5)


NORMS = {
    "gradient_norm": "true gradient",
    "clip_bias": "clipping bias",
    "noise_norm": "noise in the aggregate",
    "momentum_norm": "M",
}


def _others(run: Measured) -> list[str]:
    """The paper's quantities by round."""
    norms = {name: _column(run, key) for key, name in NORMS.items()}
    names = {"cosine_step": "step", "cosine_aggregate": "aggregate"}
    cosines = {name: _column(run, key) for key, name in names.items()}
    condition = {"H": _column(run, "condition")}
    about = "Condition number of the preconditioner"
    return [
        chart("Norms by round", norms, x="round", y="norm", log_y=True, digits=5),
        chart("Cosine with the true gradient", cosines, x="round", y="cosine", digits=3),
        chart(about, condition, x="round", y="condition number", digits=3),
    ]


def _column(run: Measured, key: str) -> list[Point]:
    return [Point(row["round"], row[key]) for row in run.rows if row.get(key) is not None]


def section(run: Measured | None) -> str:
    """A section of a run's page."""
    if run is None:
        return ""
    return (
        f"{warning(NOT_PRIVATE)}{_departures(run)}"
        f"{grid(gap_chart(run), stationarity_chart(run))}{grid(*_others(run))}"
        f"{_theorems(run.told)}{_constants(run.told)}"
    )


def _departures(run: Measured) -> str:
    away = "; ".join(run.told["departures"])
    if not away:
        return paragraph("The steps are those that the theorems are about.")
    told = "The theorems are about other steps than this run's, and only a guide:"
    return paragraph(f"{told} {away}.")


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
        title = f"{run.name}: F - F*, and Theorem {theorem['theorem']}"
        panels.append(line_chart(_gap(theorem), title=title, x="rounds", log_y=True))
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
