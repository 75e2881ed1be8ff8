"""Small charts as SVG text: no dependency, sharp at any size, readable by a screen reader."""

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7c3aed", "#be185d", "#0f766e", "#a16207", "#475569")


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
    width: int = 560,
    height: int = 300,
) -> str:
    """A chart with a line, and its name, for each series of (x, y) points."""
    left, right, top, bottom = 52, 16, 30, 40
    points = [p for line in series.values() for p in line if math.isfinite(p[1])]
    if not points:
        return ""
    xs, ys = _ticks([p[0] for p in points]), _ticks([p[1] for p in points])

    def px(value: float) -> float:
        return left + (value - xs[0]) / (xs[-1] - xs[0]) * (width - left - right)

    def py(value: float) -> float:
        return height - bottom - (value - ys[0]) / (ys[-1] - ys[0]) * (height - top - bottom)

    out = [_open(width, height, title), _text(left, 18, title, weight=600)]
    for tick in ys:
        out.append(f'<path d="M{left} {py(tick):.1f}H{width - right}" class="grid"/>')
        out.append(_text(left - 6, py(tick) + 4, f"{tick:g}", anchor="end"))
    out += [_text(px(tick), height - bottom + 16, f"{tick:g}", anchor="middle") for tick in xs]
    out.append(_text((left + width - right) / 2, height - 6, x, anchor="middle"))
    out.append(_text(width - right, 18, y, anchor="end"))
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = "L".join(f"{px(a):.1f} {py(b):.1f}" for a, b in line if math.isfinite(b))
        label = escape(name)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2">')
        out.append(f"<title>{label}</title></path>")
        if len(series) > 1:
            out.append(_text(width - right - 6, height - bottom - 8 - 16 * i, name, "end", colour))
    return "".join(out) + "</svg>"


def heat_map(counts: Sequence[Sequence[int]], *, title: str, rows: str, columns: str) -> str:
    """A table of counts as coloured cells, rows and columns numbered from 0."""
    cell_w, cell_h, left, top = 46, 20, 64, 52
    width = left + cell_w * len(counts[0]) + 8
    height = top + cell_h * len(counts) + 8
    largest = max(max(row) for row in counts) or 1
    out = [_open(width, height, title), _text(8, 18, title, weight=600)]
    out.append(_text(8, top - 8, rows))
    for k in range(len(counts[0])):
        out.append(_text(left + cell_w * (k + 0.5), top - 8, f"{columns} {k}"[-8:], "middle"))
    for i, row in enumerate(counts):
        y = top + cell_h * i
        out.append(_text(left - 8, y + 14, str(i), "end"))
        for k, count in enumerate(row):
            depth = math.sqrt(count / largest)
            colour = f"hsl(199 70% {97 - 62 * depth:.0f}%)"
            box = f'width="{cell_w - 2}" height="{cell_h - 2}"'
            out.append(f'<rect x="{left + cell_w * k + 1}" y="{y + 1}" {box} fill="{colour}"/>')
            ink = "#fff" if depth > 0.65 else "#333"
            out.append(_text(left + cell_w * (k + 0.5), y + 14, str(count), "middle", ink))
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
    ticks = _ticks(values)

    def px(value: float) -> float:
        return left + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (width - left - right)

    out = [_open(width, height, title), _text(left, 18, title, weight=600)]
    for tick in ticks:
        out.append(f'<path d="M{px(tick):.1f} {top}V{height - bottom}" class="grid"/>')
        out.append(_text(px(tick), height - bottom + 16, f"{tick:g}", anchor="middle"))
    out.append(_text((left + width - right) / 2, height - 6, x, anchor="middle"))
    for i, (name, group) in enumerate(groups.items()):
        middle, colour = top + row * (i + 0.5), COLOURS[i % len(COLOURS)]
        out.append(_text(left - 8, middle + 4, name, "end"))
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


def _open(width: float, height: float, title: str) -> str:
    style = (
        "text{font:12px system-ui,sans-serif;fill:currentColor}.grid{stroke:currentColor;"
        "stroke-opacity:.15}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}"><style>{style}</style>'
    )


def _text(
    x: float, y: float, text: str, anchor: str = "start", fill: str = "", weight: int = 400
) -> str:
    style = f' style="fill:{fill}"' if fill else ""
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{bold}{style}>{escape(text)}</text>'
    )


def _ticks(values: Sequence[float]) -> list[float]:
    """About five round numbers that span the values."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    unit = 10 ** math.floor(math.log10(span / 4))
    unit *= next(m for m in (1, 2, 5, 10) if span / 4 <= m * unit)
    first, last = math.floor(low / unit + 1e-9), math.ceil((low + span) / unit - 1e-9)
    return [round(i * unit, 12) for i in range(first, max(last, first + 1) + 1)]
