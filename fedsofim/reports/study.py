"""What 'fedsofim reproduce' wrote, on one page: the paper's tables and figures beside ours."""

import base64
import csv
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import NamedTuple

from fedsofim import __version__
from fedsofim.core.errors import require
from fedsofim.reports.charts import grid
from fedsofim.reports.lines import lines
from fedsofim.reports.page import contents, folded, header, page, paragraph, section, table
from fedsofim.reports.svg import Point

NEAR = re.compile(r"(\d+) of (\d+) gaps within ([\d.]+) points")
MOST_PICTURES = 1_500_000  # bytes of pictures that are taken onto the page; the folder has all


class Result(NamedTuple):
    """A table that was written, with its title."""

    name: str
    title: str
    header: list[str]
    rows: list[list[str]]


def is_study(path: Path) -> bool:
    """Whether 'fedsofim reproduce' wrote the tables or figures of a folder."""
    return bool(_stems(path))


def _stems(path: Path) -> list[str]:
    """The tables and figures of a folder, in the paper's order."""
    if not path.is_dir():
        return []
    known = ("table", "figure", "frontier", "rounds", "choices")
    found = {file.stem for file in path.iterdir() if file.stem.startswith(known)}
    ours = [s for s in found if any((path / f"{s}{end}").is_file() for end in (".tex", ".png"))]
    parts = {stem: re.split(r"(\d+)", stem) for stem in ours}
    return sorted(ours, key=lambda s: [int(p) if p.isdigit() else p for p in parts[s]])


def read(path: Path) -> list[Result]:
    """The tables of a folder."""
    found = []
    for stem in _stems(path):
        file = path / f"{stem}.csv"
        if not file.is_file():
            continue
        header, *rows = csv.reader(file.read_text().splitlines())
        about = path / f"{stem}.md"
        title = about.read_text().splitlines()[0].strip("* ") if about.is_file() else stem
        found.append(Result(stem, title, header, rows))
    return found


def write(path: Path, out: Path, command: str = "") -> None:
    """Write the page of a folder."""
    results = read(path)
    pictures = list(_pictures(path))
    require(bool(results or pictures), f"{path}: holds no table and no figure of the paper's")
    sections = [(_short(result), _shown(result)) for result in results]
    sections += [(path_.stem.capitalize(), picture) for path_, picture in pictures]
    made = [section(title, body) for title, body in sections]
    repeat = section("To repeat", f"<pre>{escape(command)}</pre>" if command else "")
    when = datetime.fromtimestamp(max(f.stat().st_mtime for f in path.iterdir()), UTC)
    title = "The paper's results beside ours"
    told = (f"{when:%Y-%m-%d %H:%M} UTC", f"fedsofim {__version__}", "simulations")
    head = header(title, _answer(results, len(pictures)), told)
    found = f'{contents(sections)}<div id="results"></div>'
    out.write_text(page(title, head + found + "".join(made) + repeat))


def _answer(results: Sequence[Result], pictures: int) -> str:
    counts = [NEAR.search(result.title) for result in results]
    near = sum(int(m[1]) for m in counts if m)
    every = sum(int(m[2]) for m in counts if m)
    if every:
        points = next(m[3] for m in counts if m)
        return f"{near} of {every} gaps to DP-FedGD are within {points} points of the paper's."
    return f"{len(results)} tables and {pictures} figures of the paper's, beside ours."


def _short(result: Result) -> str:
    return result.title.partition(":")[0]


def _shown(result: Result) -> str:
    rest = result.title.partition(":")[2].strip()
    shown = table(result.header, result.rows, label=result.title, sortable=True)
    charts = _convergence(result)
    first = folded("The table", shown) if charts else shown
    return paragraph(rest[:1].upper() + rest[1:]) + first + grid(*charts)


def _convergence(result: Result) -> list[str]:
    """Accuracy by round, ours and the paper's, a pair of charts for each budget."""
    rounds = [(i, int(h[2:])) for i, h in enumerate(result.header) if re.fullmatch(r"T=\d+", h)]
    if result.header[:2] != ["eps", "method"] or not rounds:
        return []
    charts = []
    methods = sorted(dict.fromkeys(r[1] for r in result.rows), key=lambda m: m != "DP-FedSOFIM")
    at = {method: i for i, method in enumerate(methods)}
    for budget in dict.fromkeys(row[0] for row in result.rows):
        rows = {row[1]: row for row in result.rows if row[0] == budget}
        for whose, shift in (("ours", 0), ("the paper's", 1)):
            series = {
                m: [_point(t, rows[m][i + shift]) for i, t in rounds] for m in methods if m in rows
            }
            title = f"{_short(result)}, epsilon {budget}: {whose}"
            charts.append(lines(title, series, x="round", y="accuracy, %", unit=" %", places=at))
    return charts


def _point(t: int, cell: str) -> Point:
    value, _, spread = cell.partition("±")
    return Point(t, float(value), float(spread or 0))


def _pictures(path: Path) -> Iterator[tuple[Path, str]]:
    """The figures of a folder, as far as they fit."""
    room = MOST_PICTURES
    for stem in _stems(path):
        file = path / f"{stem}.png"
        if not file.is_file():
            continue
        content = file.read_bytes()
        room -= len(content)
        if room < 0:
            yield file, paragraph(f"{file.name} is in the folder; the page would be too large.")
            continue
        source = base64.b64encode(content).decode()
        alt = f"{stem}, as a picture; its values are in the tables"
        yield (
            file,
            (
                f'<img src="data:image/png;base64,{source}" alt="{alt}" '
                'style="max-width:100%;height:auto;background:#fff;border-radius:12px">'
            ),
        )
