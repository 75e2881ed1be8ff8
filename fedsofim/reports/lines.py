"""Line charts of a page, zoomed in on the data.

Lines that lie on each other are found, drawn in pieces that take turns, and told.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedsofim.reports.charts import figure
from fedsofim.reports.page import table
from fedsofim.reports.svg import Point

COLOURS, DASHES = 9, ("", "7 4", "2 4")
SAME = 0.004  # of a chart's range: lines that are nowhere further apart look like one
MOST_VALUES = 80  # rows of a chart's table; of more, some


def lines(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x: str,
    y: str,
    about: str = "",
    told: str = "",
    unit: str = "",
    digits: int = 2,
    log_x: bool = False,
    log_y: bool = False,
    height: int = 320,
    places: Mapping[str, int] | None = None,
) -> str:
    """A line, and a band where it has one, for each series; nothing without points.

    Args:
        title: of the chart.
        series: points by name; the first is drawn on top.
        x: the name of the horizontal axis.
        y: the name of the vertical axis, with its unit.
        about: one line below the title.
        told: one line below the picture.
        unit: what follows a value.
        digits: of a value.
        log_x: whether the horizontal axis is logarithmic, with a tick at each value.
        log_y: whether the vertical axis is.
        height: in pixels.
        places: the colour of each name, where several charts share them.
    """
    drawn = {k: _drawable(v, log_y) for k, v in series.items()}
    drawn = {k: v for k, v in drawn.items() if v}
    if not drawn:
        return ""
    places = places or {name: i for i, name in enumerate(series)}
    groups = coinciding(drawn)
    looks = [_look(name, places[name], groups, first=i == 0) for i, name in enumerate(drawn)]
    xs = sorted({p.x for v in drawn.values() for p in v})
    start = _later(drawn, log_y) if not log_x else None
    spec = {
        "kind": "lines",
        "title": title,
        "x": {"label": x, "name": x, "log": log_x, "ticks": xs if log_x else None},
        "y": {"label": y, "log": log_y},
        "unit": unit,
        "digits": digits,
        "height": height,
        "from": start,
        "series": [
            look | {"points": [_triple(p, digits, log_y) for p in v]}
            for look, v in zip(looks, drawn.values(), strict=True)
        ],
    }
    overlaps = [" and ".join((", ".join(g[:-1]), g[-1])) for g in groups]
    same = [f"{names} lie on each other; their colours alternate." for names in overlaps]
    return figure(
        spec,
        about=about,
        told=" ".join(filter(None, [told, *same])),
        values=_values(x, xs, drawn, digits),
        legend=_legend(looks) if len(looks) > 1 else "",
        tools='<button type="button" class="tool zoom" hidden></button>' * (start is not None),
    )


def _drawable(points: Sequence[Point], log_y: bool) -> list[Point]:
    return [p for p in points if math.isfinite(p.y) and (p.y > 0 or not log_y)]


def _triple(p: Point, digits: int, log: bool) -> list[float]:
    if log:  # without bands, which would be lopsided
        return [p.x, float(f"{p.y:.5g}")]
    values = [p.y, p.y - p.band, p.y + p.band] if p.band else [p.y]
    return [p.x, *(round(v, digits + 2) for v in values)]


def _later(drawn: Mapping[str, Sequence[Point]], log: bool) -> float | None:
    """From where on to zoom in, if the first fifth of the rounds squeezes all that follows."""
    if log:
        return None
    last = max(p.x for v in drawn.values() for p in v)
    rest = [p.y for v in drawn.values() for p in v if p.x >= last / 5]
    every = [p.y for v in drawn.values() for p in v]
    squeezed = max(every) - min(every) > 1.8 * (max(rest) - min(rest)) if rest else False
    return last / 5 if squeezed and len({p.x for v in drawn.values() for p in v}) > 5 else None


def coinciding(drawn: Mapping[str, Sequence[Point]]) -> list[list[str]]:
    """The names of lines that lie on each other, in groups.

    >>> two = [Point(0, 1.0), Point(1, 5.0)]
    >>> coinciding({"a": two, "b": [Point(0, 2.0), Point(1, 5.0)], "c": two})
    [['a', 'c']]
    """
    values = [p.y for v in drawn.values() for p in v]
    near = SAME * ((max(values) - min(values)) or abs(max(values)) or 1.0)
    groups: list[list[str]] = []
    for name, line in drawn.items():
        at = {p.x: p.y for p in line}
        for group in groups:
            first = {p.x: p.y for p in drawn[group[0]]}
            if at.keys() == first.keys() and all(abs(at[x] - first[x]) <= near for x in at):
                group.append(name)
                break
        else:
            groups.append([name])
    return [group for group in groups if len(group) > 1]


def _look(name: str, place: int, groups: Sequence[Sequence[str]], *, first: bool) -> dict[str, Any]:
    look: dict[str, Any] = {"name": name, "colour": place, "width": 3 if first else 2}
    if DASHES[place // COLOURS % len(DASHES)]:
        look["dash"] = DASHES[place // COLOURS % len(DASHES)]
    for group in groups:
        if name in group:  # pieces that take turns along the common line
            piece = 9
            look |= {"dash": f"{piece} {piece * (len(group) - 1)}", "width": 3}
            look["offset"] = -piece * group.index(name)
    return look


def _legend(looks: Sequence[Mapping[str, Any]]) -> str:
    items = "".join(
        f'<li><button type="button" aria-pressed="true" data-series="{escape(look["name"])}">'
        f'<svg width="26" height="10" aria-hidden="true"><path d="M0 5H26" fill="none" '
        f'style="stroke:var(--c{look["colour"] % COLOURS})" stroke-width="{look["width"]}" '
        f'stroke-dasharray="{look.get("dash", "") if "offset" not in look else ""}"/></svg>'
        f"{escape(look['name'])}</button></li>"
        for look in looks
    )
    return f'<ul class="legend" aria-label="Lines; a click hides or shows one">{items}</ul>'


def _values(x: str, xs: Sequence[float], drawn: Mapping[str, Sequence[Point]], digits: int) -> str:
    every = max(1, math.ceil(len(xs) / MOST_VALUES))
    chosen = [v for i, v in enumerate(xs) if i % every == 0 or v == xs[-1]]
    at = {name: {p.x: p for p in line} for name, line in drawn.items()}
    rows = [[f"{v:g}", *(_shown(at[name].get(v), digits) for name in drawn)] for v in chosen]
    return table((x, *drawn), rows, label="Values")


def _shown(p: Point | None, digits: int) -> str:
    if p is None:
        return ""
    small = 0 < abs(p.y) < 10**-digits
    return (f"{p.y:.3g}" if small else f"{p.y:.{digits}f}") + (
        f" ± {p.band:.{digits}f}" if p.band else ""
    )
