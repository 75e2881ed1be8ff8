"""Small charts as SVG files: no dependency, sharp at any size, readable by a screen reader."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

# Distinct to most colour-blind readers, and on light and dark ground.
COLOURS = (
    "#0072b2",
    "#e08a00",
    "#009e73",
    "#cc6fa5",
    "#8c564b",
    "#45a8e6",
    "#7a52c7",
    "#8a8a8a",
    "#d62839",
)
DASHES = ("", "6 3", "2 3")
# Marks around (0, 0): disc, square, triangle, diamond.
MARKS = (
    "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "m-2.7-2.7h5.4v5.4h-5.4z",
    "m0-3.6 3.4 6h-6.8z",
    "m0-3.8 3.4 3.8-3.4 3.8-3.4-3.8z",
)


class Point(NamedTuple):
    """A point of a line, with the half-width of the band around it."""

    x: float
    y: float
    band: float = 0.0


class Style(NamedTuple):
    """How a series is drawn."""

    colour: str
    dashes: str
    mark: str


def style(i: int) -> Style:
    """The look of the i-th series: told apart by colour, by mark, and then by dashes."""
    dashes = DASHES[i // len(COLOURS) % len(DASHES)]
    return Style(COLOURS[i % len(COLOURS)], dashes, MARKS[i % len(MARKS)])


class _Frame(NamedTuple):
    """Where values lie on a chart: from `low` to `high` across, between the first and last `ys`."""

    low: float
    high: float
    xs: Sequence[float]
    ys: Sequence[float]
    log_x: bool
    width: int
    height: int
    left: int = 52
    right: int = 14
    top: int = 34
    bottom: int = 42
    log_y: bool = False

    def place(self, x: float, y: float) -> Point:
        """The point's place in pixels."""
        across = ((math.log10(x) if self.log_x else x) - self.low) / ((self.high - self.low) or 1)
        up = (y - self.ys[0]) / (self.ys[-1] - self.ys[0])
        return Point(
            self.left + across * (self.width - self.left - self.right),
            self.height - self.bottom - up * (self.height - self.top - self.bottom),
        )

    def axes(self, x: str) -> list[str]:
        """Grid lines, ticks and the name of the x axis."""
        edge, out = self.width - self.right, []
        for tick in self.ys:
            y = self.place(1.0, tick).y
            out.append(f'<path d="M{self.left} {y:.1f}H{edge}" class="grid"/>')
            told = f"1e{tick:g}" if self.log_y else f"{tick:g}"
            out.append(label(self.left - 6, y + 4, told, "end"))
        under = self.height - self.bottom + 16
        for tick in self.xs:
            out.append(label(self.place(tick, self.ys[0]).x, under, f"{tick:g}", "middle"))
        return [*out, label((self.left + edge) / 2, self.height - 6, x, "middle")]


def line_chart(
    series: Mapping[str, Sequence[Point]],
    *,
    title: str,
    x: str,
    log_x: bool = False,
    log_y: bool = False,
    width: int = 560,
    height: int = 320,
) -> str:
    """A line, and a band where it has one, for each series; the legend is the caller's."""
    drawn = {k: [p for p in line if math.isfinite(p.y)] for k, line in series.items()}
    if log_y:  # without bands, which would be lopsided
        drawn = {
            k: [Point(p.x, math.log10(p.y)) for p in line if p.y > 0] for k, line in drawn.items()
        }
    points = [p for line in drawn.values() for p in line]
    if not points:
        return ""
    xs = sorted({p.x for p in points})
    low, high = (math.log10(v) if log_x else v for v in (xs[0], xs[-1]))
    if not log_x:
        xs = [tick for tick in round_ticks([low, high]) if low <= tick <= high]
    ys = round_ticks([p.y + s * p.band for p in points for s in (-1, 1)], 1 if log_y else 0)
    frame = _Frame(low, high, xs, ys, log_x, width, height, log_y=log_y)
    out = [opening(width, height, title), label(frame.left, 18, title, weight=600), *frame.axes(x)]
    for i, line in enumerate(drawn.values()):
        if any(p.band for p in line):
            out.append(_band(frame, line, style(i).colour))
    for i, (name, line) in enumerate(drawn.items()):
        if line:
            out.append(_line(name, [frame.place(p.x, p.y) for p in line], style(i)))
    return "".join(out) + "</svg>"


def _band(frame: _Frame, line: Sequence[Point], colour: str) -> str:
    edge = [frame.place(p.x, p.y + p.band) for p in line]
    edge += [frame.place(p.x, p.y - p.band) for p in reversed(line)]
    shape = "L".join(f"{p.x:.1f} {p.y:.1f}" for p in edge)
    return f'<path d="M{shape}Z" fill="{colour}" fill-opacity=".12"/>'


def _line(name: str, points: Sequence[Point], look: Style) -> str:
    path = "L".join(f"{p.x:.1f} {p.y:.1f}" for p in points)
    dash = f' stroke-dasharray="{look.dashes}"' if look.dashes else ""
    some = points[:: math.ceil(len(points) / 8)]
    marks = "".join(f"M{p.x:.1f} {p.y:.1f}{look.mark}" for p in some)
    return (
        f'<g fill="{look.colour}"><title>{escape(name)}</title>'
        f'<path d="M{path}" fill="none" stroke="{look.colour}" stroke-width="2"{dash}/>'
        f'<path d="{marks}"/></g>'
    )


def swatch(i: int) -> str:
    """A short piece of the i-th line, for a legend."""
    look = style(i)
    dash = f' stroke-dasharray="{look.dashes}"' if look.dashes else ""
    return (
        '<svg width="28" height="10" aria-hidden="true"><path d="M1 5H27" '
        f'stroke="{look.colour}" stroke-width="2"{dash}/>'
        f'<path d="M14 5{look.mark}" fill="{look.colour}"/></svg>'
    )


def heat_map(counts: Sequence[Sequence[int]], *, title: str, rows: str, columns: str) -> str:
    """A table of counts as coloured cells, rows and columns numbered from 0."""
    cell_w, cell_h, left, top = 46, 20, 64, 52
    width = left + cell_w * len(counts[0]) + 8
    height = top + cell_h * len(counts) + 8
    largest = max(max(row) for row in counts) or 1
    out = [opening(width, height, title), label(8, 18, title, weight=600)]
    out.append(label(8, top - 8, rows))
    for k in range(len(counts[0])):
        out.append(label(left + cell_w * (k + 0.5), top - 8, f"{columns} {k}"[-8:], "middle"))
    for i, row in enumerate(counts):
        y = top + cell_h * i
        out.append(label(left - 8, y + 14, str(i), "end"))
        for k, count in enumerate(row):
            depth = math.sqrt(count / largest)
            colour = f"hsl(199 70% {97 - 62 * depth:.0f}%)"
            box = f'width="{cell_w - 2}" height="{cell_h - 2}"'
            out.append(f'<rect x="{left + cell_w * k + 1}" y="{y + 1}" {box} fill="{colour}"/>')
            ink = "#fff" if depth > 0.65 else "#333"
            out.append(label(left + cell_w * (k + 0.5), y + 14, str(count), "middle", ink))
    return "".join(out) + "</svg>"


def strip_plot(
    groups: Mapping[str, Sequence[float]], *, title: str, x: str, width: int = 560
) -> str:
    """A row of dots for each group, one dot a value, with a bar at the group's mean."""
    left, right, top, bottom, row = 130, 16, 30, 40, 44
    values = [v for group in groups.values() for v in group if math.isfinite(v)]
    if not values:
        return ""
    height = top + row * len(groups) + bottom
    ticks = round_ticks(values)

    def px(value: float) -> float:
        return left + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (width - left - right)

    out = [opening(width, height, title), label(left, 18, title, weight=600)]
    for tick in ticks:
        out.append(f'<path d="M{px(tick):.1f} {top}V{height - bottom}" class="grid"/>')
        out.append(label(px(tick), height - bottom + 16, f"{tick:g}", anchor="middle"))
    out.append(label((left + width - right) / 2, height - 6, x, anchor="middle"))
    for i, (name, group) in enumerate(groups.items()):
        middle, colour = top + row * (i + 0.5), COLOURS[i % len(COLOURS)]
        out.append(label(left - 8, middle + 4, name, "end"))
        finite = [v for v in group if math.isfinite(v)]
        for j, value in enumerate(finite):
            y = middle + 14 * ((j * 0.618034) % 1 - 0.5)  # spread evenly, so that dots stay apart
            out.append(
                f'<circle cx="{px(value):.1f}" cy="{y:.1f}" r="3.5" fill="{colour}" '
                f'fill-opacity=".55"><title>{escape(f"{name} {j}: {value:.4g}")}</title></circle>'
            )
        if finite:
            mean = px(sum(finite) / len(finite))
            out.append(
                f'<path d="M{mean:.1f} {middle - 14:.1f}v28" stroke="{colour}" stroke-width="3"/>'
            )
    return "".join(out) + "</svg>"


def opening(width: float, height: float, title: str) -> str:
    """The beginning of a picture that screen readers call by its title."""
    css = (
        "text{font:12px system-ui,sans-serif;fill:currentColor}.grid{stroke:currentColor;"
        "stroke-opacity:.15}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}"><style>{css}</style>'
    )


def label(
    x: float, y: float, text: str, anchor: str = "start", fill: str = "", weight: int = 400
) -> str:
    """A line of text."""
    css = f"fill:{fill};" * bool(fill) + f"font-weight:{weight}" * (weight != 400)
    style = f' style="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def round_ticks(values: Sequence[float], least: float = 0.0) -> list[float]:
    """About five round numbers that span the values, at least `least` apart."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    unit = 10 ** math.floor(math.log10(span / 4))
    unit *= next(m for m in (1, 2, 5, 10) if span / 4 <= m * unit * (1 + 1e-9))
    unit = max(unit, least)
    first, last = math.floor(low / unit + 1e-9), math.ceil((low + span) / unit - 1e-9)
    return [round(i * unit, 12) for i in range(first, max(last, first + 1) + 1)]
