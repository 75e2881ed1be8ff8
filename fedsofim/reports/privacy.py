"""What a run released and what that cost, and how loud the noise is: sections of its page."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.reports import names
from fedsofim.reports.charts import grid
from fedsofim.reports.lines import lines
from fedsofim.reports.page import paragraph, table
from fedsofim.reports.svg import Point
from fedsofim.runs.directory import Row
from fedsofim.runs.record import LOST, Released

if TYPE_CHECKING:
    from fedsofim.reports.run_page import Found


def charged(found: "Found") -> str:
    """Every release that records are charged for, and epsilon by round."""
    if found.summary is not None and found.summary["epsilon"] is None:
        return ""
    released = found.released
    ends = _ends(found, released)
    stages = _stages(found.config)
    rows = [_row(*row, end, stages) for row, end in zip(_rows(released), ends, strict=True)]
    if not rows:
        return paragraph("Nothing was released yet.") if found.summary is None else ""
    mu = released.mu()
    told = (
        "Every value that depends on records is clipped, so that one record moves it by no more "
        "than a known bound, and hidden in Gaussian noise, before it leaves a client. Each such "
        "release is charged; all of them together make the promise."
    )
    header = (
        *("released", "times", "one record moves it by at most", "noise (standard deviation)"),
        "share of the budget (mu)",
    )
    right = f"{100 * names.guess(mu):.1f}"
    total = (
        f"Together mu = {mu:.4g}: the best attacker tells two records apart {right} times in 100."
    )
    phases = str((found.summary or {}).get("phases", ""))
    spent = [Point(r["round"], r["epsilon"]) for r in found.rows if r["epsilon"] is not None]
    chart = lines(
        "Epsilon spent",
        {"epsilon": spent},
        x="round",
        y="epsilon",
        digits=3,
        about="What has been spent of the budget after each round.",
    )
    return (
        paragraph(told) + table(header, rows, label="Released and charged") + paragraph(total)
        + paragraph(phases, "soft") + grid(chart)
    )  # fmt: skip


def _row(
    start: int, sensitivity: float, std: float, times: float, end: int, stages: Sequence[str]
) -> list[str]:
    share = _mu(times, sensitivity, std)
    return [_when(start, end, stages), f"{times:g}", f"{sensitivity:.4g}", f"{std:.4g}", share]


def _stages(config: Row) -> list[str]:
    """What is released before the first round, by name, as far as the config still tells."""
    try:
        return [stage.name for stage in parse(config).stages]
    except (ConfigError, KeyError, OSError):
        return []


def _rows(released: Released) -> list[tuple[int, float, float, float]]:
    return list(zip(*(a.tolist() for a in released), strict=True))


def _ends(found: "Found", released: Released) -> list[int]:
    """The last round that each row is about."""
    starts = [start for start in released.start.tolist() if start >= 0]
    done = found.rows[-1]["round"] if found.rows else 0
    later = dict(zip(starts, [*starts[1:], done], strict=False))  # of no round, no end
    return [later.get(start, 0) for start in released.start.tolist()]


def _when(start: int, end: int, stages: Sequence[str]) -> str:
    if start == LOST:
        return "rounds that a crash lost, and that were released anew"
    if start >= 0:
        return f"rounds {start + 1} to {end}"
    named = -start <= len(stages)  # stages are numbered from the last, -1, backwards
    return f"before round 1: {stages[start] if named else f'stage {start}'}"


def _mu(times: float, sensitivity: float, std: float) -> str:
    return f"{math.sqrt(times) * sensitivity / std:.4g}" if std else "no noise"


def noise(found: "Found") -> str:
    """The norm of the aggregate beside that of the noise in it."""
    series = {
        name: [Point(r["round"], r[key]) for r in found.rows if r.get(key) is not None]
        for name, key in (("aggregate", "gradient_norm"), ("noise in it", "noise_norm"))
    }
    pairs = [
        r["noise_norm"] / r["gradient_norm"]
        for r in found.rows
        if r.get("noise_norm") and r.get("gradient_norm")
    ]
    if not pairs:
        return ""
    share = 100 * min(1.0, pairs[-1])
    told = (
        "The server averages what clients release; the records' signal and the noise that hides "
        "them arrive as one sum, the aggregate. Where the two lines meet, a round tells almost "
        "nothing but noise, and only averaging over rounds (momentum) learns from it. In the last "
        f"round the noise was {share:.0f} % of the aggregate's length."
    )
    chart = lines(
        "Length of the aggregate and of the noise in it",
        {k: v for k, v in series.items() if v},
        x="round",
        y="Euclidean norm",
        digits=4,
        log_y=True,
        about="Noise near the aggregate: little is learnt in a round. Far below: much.",
    )
    return paragraph(told) + grid(chart)
