"""The frame of every page and its pieces: self-contained HTML that loads nothing from anywhere."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape

from fedsofim.core.shipped import shipped

# Nothing may be loaded; a page that 'fedsofim watch' serves may ask for itself again.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)
FOOT = (
    "<footer>Made by fedsofim. This page holds all it shows: it loads nothing, and can be sent, "
    "stored and printed.</footer>"
)
SCRIPTS = ("d3.min.js", "plot.min.js", "page.js")  # d3 and Observable Plot: data/page/LICENSES.txt


@cache
def asset(name: str) -> str:
    """A file that pages carry; empty where the package is not installed with its files.

    The page then has its tables, without pictures: what was trained is written all the same.
    """
    file = shipped("data/page") / name
    return file.read_text() if file.is_file() else ""


def page(title: str, body: str, *, every: int = 0) -> str:
    """A whole page.

    Args:
        title: as the browser shows it.
        body: what stands in `main`, as HTML.
        every: milliseconds after which it asks for itself anew; never by default.
    """
    scripts = "".join(f"<script>{asset(name)}</script>" for name in SCRIPTS if asset(name))
    live, foot = (f' data-every="{every}"', "") if every else ("", FOOT)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title>"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<style>{asset('page.css')}</style></head><body{live}>"
        f'<a class="skip" href="#results">Skip to the results</a><main>{body}{foot}</main>'
        f"{scripts}</body></html>\n"
    )


def header(kicker: str, answer: str, told: Iterable[str], lead: str = "", above: str = "") -> str:
    """What a page begins with.

    Args:
        kicker: what it is about.
        answer: what there is to know, in one sentence.
        told: when and with what the page came about.
        lead: what that means, in another.
        above: what stands between the two, as HTML.
    """
    # A number stays beside its unit, and a method's name in one piece.
    whole = re.sub(r"(?<=\d) (?=%)|(?<=epsilon) (?=[\d.])", "\u00a0", answer)
    whole = whole.replace("DP-", "DP\u2011")
    return (
        f'<header><p class="kicker">{escape(kicker)}</p><h1>{escape(whole)}</h1>{above}'
        f"{paragraph(lead, 'lead')}{_facts(told)}</header>"
    )


def section(title: str, body: str, anchor: str = "") -> str:
    """A section with its heading; nothing without a body."""
    if not body:
        return ""
    name = anchor or "-".join(title.lower().split())
    return f'<section id="{escape(name)}"><h2>{escape(title)}</h2>{body}</section>'


def contents(sections: Sequence[tuple[str, str]]) -> str:
    """Links to the sections that have a body, given as title and body."""
    links = "".join(
        f'<li><a href="#{"-".join(title.lower().split())}">{escape(title)}</a></li>'
        for title, body in sections
        if body
    )
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if links else ""


def tiles(items: Iterable[tuple[str, str, str]]) -> str:
    """The few figures that matter: what it is, the value, and a line about it."""
    made = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd class="big">{value}</dd>'
        f'<dd class="note">{escape(note)}</dd></div>'
        for name, value, note in items
    )
    return f'<dl class="tiles" id="results">{made}</dl>'


def _facts(items: Iterable[str]) -> str:
    return f'<ul class="meta">{"".join(f"<li>{escape(item)}</li>" for item in items if item)}</ul>'


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    label: str = "",
    sortable: bool = False,
    best: Sequence[tuple[int, int]] = (),
    text: Sequence[int] = (),
) -> str:
    """A table of texts that scrolls by itself where it is too wide; nothing without rows.

    Args:
        header: the names of the columns.
        rows: the first cell of each names it.
        label: what a screen reader calls it.
        sortable: whether a click on a column's name sorts by it.
        best: cells that stand out, by row and column.
        text: columns of words rather than numbers.
    """
    if not rows:
        return ""

    def kind(column: int, row: int = -1) -> str:
        names = ["text"] * (column in text) + ["best"] * ((row, column) in best)
        return f' class="{" ".join(names)}"' if names else ""

    head = "".join(f'<th scope="col"{kind(i)}>{escape(h)}</th>' for i, h in enumerate(header))
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td{kind(i, r)}>{escape(cell)}</td>" for i, cell in enumerate(rest, 1))
        + "</tr>"
        for r, (first, *rest) in enumerate(rows)
    )
    named = f' aria-label="{escape(label)}"' if label else ""
    return (
        f'<div class="scroll" tabindex="0" role="region"{named or " aria-label=Table"}>'
        f"<table{' class=sortable' * sortable}{named}><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def folded(title: str, body: str, *, paper: bool = False) -> str:
    """What opens by a click and, if `paper`, when it is printed; nothing without a body."""
    kind = ' class="paper"' if paper else ""
    return f"<details{kind}><summary>{escape(title)}</summary>{body}</details>" if body else ""


def uncovered(text: str) -> str:
    """The mark of what no epsilon covers."""
    return f'<p class="uncovered">{escape(text)}</p>'


def warning(text: str) -> str:
    """What nobody should overlook."""
    return f'<p class="warn">{escape(text)}</p>'


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; nothing without a text."""
    css = f' class="{kind}"' if kind else ""
    return f"<p{css}>{escape(text)}</p>" if text else ""
