"""Pieces of HTML that pages share."""

from collections.abc import Sequence
from html import escape


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts that scrolls by itself where it is too wide; nothing without rows."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in header)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
