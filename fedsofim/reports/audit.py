"""What attacks found, beside what is claimed: a section of a run's page, and a page of its own."""

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any

from fedsofim import __version__
from fedsofim.reports import names
from fedsofim.reports.charts import bars
from fedsofim.reports.page import header, page, paragraph, section, table, warning

COLUMNS = ("attack", "epsilon claimed", "proved at least", "confidence", "verdict")
# What each attack does, for whoever has not read its code: its title, and a sentence.
ATTACKS = {
    "pair": (
        "A worst pair",
        "The client's program runs many times on each of two data sets that differ in one record, "
        "chosen as badly as can be; the attacker tells from a run which of the two it was.",
    ),
    "canaries": (
        "Canaries",
        "Records made to be noticed are in one real run or not, as a coin says; the attacker tells "
        "from what was released which of them were in.",
    ),
    "reachability": (
        "Reachable numbers",
        "Single numbers of a release are looked at: one that only one of two data sets could have "
        "given, whatever the noise, betrays it.",
    ),
}


def audited(row: Mapping[str, Any] | None) -> str:
    """What an audit found; nothing if there was none."""
    if row is None:
        return ""
    cells = [
        [
            _name(test["test"]),
            f"{test['epsilon_claimed']:.4g}",
            f"{test['epsilon_lower_bound']:.4g}",
            f"{100 * test['confidence']:.2f} %",
            "within the claim" if test["passed"] else "above the claim",
        ]
        for test in row["tests"]
    ]
    cells += [[_name(name), "", "", "", "not applicable"] for name in row["not_applicable"]]
    refuted = "" if row["passed"] else warning("An attack refutes the claim of this run.")
    whose = "a deployed client" if row["of"] == "device" else "a simulation"
    sure = f"{100 * row['confidence']:.0f} %"
    told = (
        f"What attacks on {whose} of this config prove that it gives away at least, at delta "
        f"{names.small(row['delta'])}; all together with {sure} confidence. A low bound "
        "proves nothing: a better attack may find more."
    )
    shown = table(COLUMNS, cells, label="Audit")
    return refuted + paragraph(told) + _chart(row) + shown + _details(row)


def _name(test: str) -> str:
    return ATTACKS.get(test, (test, ""))[0]


def _chart(row: Mapping[str, Any]) -> str:
    tests = row["tests"]
    rows = [(_name(t["test"]), float(t["epsilon_lower_bound"]), t["detail"]) for t in tests]
    claimed = float(row["epsilon_claimed"])
    return bars(
        "Proved beside claimed",
        rows,
        x="epsilon",
        digits=3,
        most=1.1 * max([claimed, *(bound for _, bound, _ in rows)]),
        limit=claimed,
        about=f"Bars: what each attack proves at least. Dashed: the claim, epsilon {claimed:.4g}.",
    )


def _details(row: Mapping[str, Any]) -> str:
    """What each attack does and how it went."""
    told = [(test["test"], test["detail"]) for test in row["tests"]]
    told += [(k, f"not applicable, {why}") for k, why in dict(row["not_applicable"]).items()]
    items = ""
    for name, detail in told:
        title, does = ATTACKS.get(name, (name, ""))
        how = f"{does} Here: {detail}." if does else f"{detail}."
        items += f"<li><b>{escape(title)}.</b> {escape(how)}</li>"
    return f"<ul>{items}</ul>"


def page_of(row: Mapping[str, Any], title: str, command: str) -> str:
    """A page of an audit of a config, which has no directory of its own."""
    found, claimed = row["epsilon_lower_bound"], row["epsilon_claimed"]
    answer = (
        f"The claim of epsilon {claimed:.3g} stands: the best of {len(row['tests'])} attacks "
        f"proves {found:.3g}."
        if row["passed"]
        else f"The claim is refuted: epsilon {found:.3g} is given away, {claimed:.3g} is promised."
    )
    told = [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"fedsofim {__version__}",
        f"attacked for {names.duration(row['seconds'])}",
    ]
    body = (
        f"{header(f'Audit of {title}', answer, told)}"
        f'<div id="results">{section("Audit", audited(row))}</div>'
        f"{section('To repeat', f'<pre>{escape(command)}</pre>')}"
    )
    return page(f"Audit of {title}", body)
