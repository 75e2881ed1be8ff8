"""Charts of a page: what is to be drawn, as JSON for the page's script, and the same as a table.

The table is there for whoever does not see the picture. Lines are in `lines.py`.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedsofim.reports.page import folded, paragraph, table


def figure(
    spec: dict[str, Any], *, about: str, told: str, values: str, legend: str = "", tools: str = ""
) -> str:
    """A chart with its caption, what there is to say of it, and its values."""
    text = json.dumps(spec, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    name = f"chart-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    label = escape(f"{spec['title']}. {about} Arrow keys read its values.", quote=True)
    return (
        f'<figure class="chart"><figcaption><b>{escape(spec["title"])}</b>'
        f"<span>{escape(about)}</span></figcaption>{legend}{tools}"
        f'<div class="plot" role="img" tabindex="0" aria-label="{label}" data-chart="{name}"></div>'
        f'<p class="readout" role="status"></p>'
        f'<script type="application/json" id="{name}">{text}</script>'
        f"{paragraph(told, 'told')}{folded('Values as a table', values)}</figure>"
    )


def bars(
    title: str,
    rows: Sequence[tuple[str, float, str]],
    *,
    x: str,
    about: str = "",
    digits: int = 1,
    most: float = 100.0,
    limit: float | None = None,
) -> str:
    """A bar from 0 for each row of name, value and a note; `most` fits, `limit` is drawn across."""
    if not rows:
        return ""
    spec = {
        "kind": "bars",
        "title": title,
        "x": {"label": x},
        "digits": digits,
        "domain": [0, most],
        "limit": limit,
        "rows": [[name, round(value, 3), note] for name, value, note in rows],
    }
    values = table(("", x, "of"), [[name, f"{v:.2f}", note] for name, v, note in rows], label=title)
    return figure(spec, about=about, told="", values=values)


def dots(
    title: str,
    groups: Mapping[str, Sequence[tuple[str, float]]],
    *,
    x: str,
    about: str = "",
    unit: str = " %",
    digits: int = 1,
) -> str:
    """A row of dots for each group, each with its name, and a bar at the mean."""
    known = {
        k: [(name, round(v, 3)) for name, v in group if math.isfinite(v)]
        for k, group in groups.items()
    }
    known = {k: v for k, v in known.items() if v}
    if not known:
        return ""
    spec = {
        "kind": "dots",
        "title": title,
        "x": {"label": x},
        "unit": unit,
        "digits": digits,
        "groups": [{"name": k, "values": v} for k, v in known.items()],
    }
    rows = [[k, name, f"{v:.{digits}f}"] for k, group in known.items() for name, v in group]
    return figure(spec, about=about, told="", values=table(("", "", x), rows, label=title))


def matrix(
    title: str,
    values: Sequence[Sequence[int]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    x: str,
    y: str,
    about: str = "",
    square: bool = False,
) -> str:
    """Counts as shaded cells; `square`: by their part of the row, and the diagonal is right."""
    largest = max((max(row) for row in values), default=0) or 1
    sums = [sum(row) or 1 for row in values]
    depths = [
        [round(v / sums[i] if square else math.sqrt(v / largest), 3) for v in row]
        for i, row in enumerate(values)
    ]
    told = [
        [
            f"{y} {rows[i]}, {x} {columns[k]}\n{v} records, {100 * v / sums[i]:.1f} % of its row"
            for k, v in enumerate(row)
        ]
        for i, row in enumerate(values)
    ]
    spec = {
        "kind": "matrix",
        "title": title,
        "x": x,
        "y": y,
        "rows": list(rows),
        "columns": list(columns),
        "values": [list(row) for row in values],
        "depths": depths,
        "told": told,
        "text": len(columns) <= 25,
        "square": square,
    }
    cells = [[rows[i], *(str(v) for v in row)] for i, row in enumerate(values)]
    shown = table((f"{y} \\ {x}", *columns), cells, label=title)
    return figure(spec, about=about, told="", values=shown)


def calibration(title: str, bins: Sequence[Mapping[str, Any]], *, about: str) -> str:
    """How often predictions are right, by how sure the model is."""
    known = [b for b in bins if b["accuracy"] is not None]
    if not known:
        return ""
    most = max(b["records"] for b in known)
    spec = {
        "kind": "calibration",
        "title": title,
        "x": {"label": "how sure the model is, %"},
        "y": {"label": "right, %"},
        "height": 320,
        "bins": [
            {
                "from": round(100 * b["from"], 1),
                "to": round(100 * b["to"], 1),
                "right": round(100 * b["accuracy"], 2),
                "records": b["records"],
                "depth": round(b["records"] / most, 3),
            }
            for b in known
        ],
    }
    rows = [
        [
            f"{100 * b['from']:.0f}-{100 * b['to']:.0f}",
            f"{100 * b['accuracy']:.1f}",
            f"{b['records']}",
        ]
        for b in known
    ]
    values = table(("sure, %", "right, %", "records"), rows, label=title)
    return figure(spec, about=about, told="", values=values)


def grid(*charts: str) -> str:
    """Charts beside each other where there is room."""
    found = [chart for chart in charts if chart]
    return f'<div class="charts">{"".join(found)}</div>' if found else ""
