"""Hooks of the documentation site (mkdocs.yml): one tree for the reference, formulas as MathML.

Examples in docstrings are shown as code; by itself the reference would take them for quotations.

Formulas are turned into MathML when the site is built, so that its pages load no script from
elsewhere. Links of a page into the repository, which the site does not have, become plain names.
"""

import logging
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parent.parent
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.S
)


def on_config(config: Any) -> Any:
    """Lay the package out as a wheel has it, for tools that do not run the code."""
    subprocess.run([str(ROOT / "scripts" / "one_tree"), str(ROOT / "build" / "one")], check=True)
    logging.getLogger("traitlets").setLevel(logging.ERROR)
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name what lies outside the pages, and link no further."""
    return re.sub(r"\[([^\]]+)\]\(\.\./([^)#]+)\)", r"`\2`", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as the browser itself sets them."""
    return FORMULA.sub(_set, html)


def _set(found: re.Match[str]) -> str:
    block = found["tag"] == "div"
    made = convert(unescape(found["tex"]).strip(), display="block" if block else "inline")
    # What is wider than a phone is scrolled by itself, and not the page.
    return f'<div class="formula">{made}</div>' if block else made


class Doctests(griffe.Extension):
    """Examples of docstrings, from the first prompt to the next empty line, as blocks of code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Mark the examples of one object's docstring."""
        if obj.docstring:
            obj.docstring.value = marked(obj.docstring.value)


def marked(docstring: str) -> str:
    """A docstring with fences around its examples."""
    blocks = re.split(r"\n[ \t]*\n", docstring)
    fenced = [f"```pycon\n{b.strip()}\n```" if b.startswith(">>> ") else b for b in blocks]
    return "\n\n".join(fenced)
