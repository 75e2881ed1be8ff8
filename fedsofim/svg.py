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
