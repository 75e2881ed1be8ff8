"""What attacks found, beside what is claimed: a section of a run's page, and a page of its own."""

from collections.abc import Mapping
from html import escape
from typing import Any

from fedsofim import __version__
from fedsofim.reports.page import facts, page, paragraph, section, table, warning

AUDITED = ("test", "epsilon claimed", "lower bound found", "confidence", "verdict")


def audited(row: Mapping[str, Any] | None) -> str:
    """What an audit found; nothing if there was none."""
    if row is None:
        return ""
    cells = [
        [
            test["test"],
            f"{test['epsilon_claimed']:.4g}",
            f"{test['epsilon_lower_bound']:.4g}",
            f"{100 * test['confidence']:.2f} %",
            "within the claim" if test["passed"] else "above the claim",
        ]
        for test in row["tests"]
    ]
    cells += [[name, "", "", "", "not applicable"] for name in row["not_applicable"]]
    details = [(test["test"], test["detail"]) for test in row["tests"]]
    details += [(k, f"not applicable, {why}") for k, why in dict(row["not_applicable"]).items()]
    items = "".join(f"<li><b>{escape(k)}</b>: {escape(text)}</li>" for k, text in details)
    refuted = "" if row["passed"] else warning("An attack refutes the claim of this run.")
    told = (
        f"What attacks on this config ({row['of']}) prove that it gives away at least, at delta "
        f"{row['delta']:g}; all together with {row['confidence']:.0%} confidence. A low bound "
        "proves nothing."
    )
    return refuted + paragraph(told) + table(AUDITED, cells, label="Audit") + f"<ul>{items}</ul>"


def page_of(row: Mapping[str, Any], title: str, command: str) -> str:
    """A page of an audit of a config, which has no directory of its own."""
    tests, told = len(row["tests"]), f"{row['seconds']} s"
    answer = (
        f"None of {tests} attacks refutes the claim."
        if row["passed"]
        else "The claim is refuted: it gives away more than it promises."
    )
    body = (
        f'<header><p class="kicker">Audit of {escape(title)}</p><h1>{answer}</h1>'
        f"{facts([f'fedsofim {__version__}', told])}</header>"
        f'<div id="results">{section("Audit", audited(row))}</div>'
        f"{section('To repeat', f'<pre>{escape(command)}</pre>')}"
    )
    return page(f"Audit of {title}", body)
