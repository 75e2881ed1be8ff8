"""What is shown of a run while it goes on: rounds, budget, time to go, and who is there."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from fedsofim.config.schema import parse
from fedsofim.reports import names
from fedsofim.reports.page import table

if TYPE_CHECKING:
    from fedsofim.reports.run_page import Found


def progress(found: "Found", status: Mapping[str, Any] | None = None) -> str:
    """How far a run is, and when it will be done."""
    done, rounds = len(found.rows), int(found.config["rounds"])
    told = [f"Round {done} of {rounds}", *_budget(found), _to_go(found, done, rounds)]
    bar = f'<progress max="{rounds}" value="{done}">{done} of {rounds}</progress>'
    return (
        f'<div class="live" role="status"><p><b>{escape(" · ".join(filter(None, told)))}</b></p>'
        f"{bar}</div>{present(status)}{_dropped(found)}"
    )


def _budget(found: "Found") -> list[str]:
    """What is spent, and what is left of what the config allows."""
    planned, delta = parse(found.config).epsilon(), found.config["privacy"].get("delta")
    before = found.released.epsilon(delta) if delta else 0.0  # by stages before round 1
    spent = found.rows[-1]["epsilon"] if found.rows else before
    if spent is None or planned == float("inf"):
        return ["not private"]
    return [f"epsilon {spent:.3g} of {planned:.3g} spent, {max(0.0, planned - spent):.3g} left"]


def _to_go(found: "Found", done: int, rounds: int) -> str:
    if not done or done >= rounds:
        return ""
    recent = found.rows[-20:]  # the pace of now, not of the first round
    steps = recent[-1]["round"] - recent[0]["round"]
    pace = (recent[-1]["seconds"] - recent[0]["seconds"]) / steps if steps else None
    pace = recent[-1]["seconds"] / recent[-1]["round"] if pace is None else pace
    return f"about {names.duration(pace * (rounds - done))} to go"


def present(status: Mapping[str, Any] | None) -> str:
    """Who is connected, who is not, and who refused and why, as a deployed server tells."""
    if not status:
        return ""
    here, why = set(status.get("here", ())), dict(status.get("refused", {}))
    rows = []
    for client in range(int(status.get("clients", 0))):
        state = "connected" if client in here else "not connected"
        reason = str(why.get(str(client), ""))
        if reason:
            state = "refused"
        rows.append([f"client {client}", state, reason])
    others = [["another node", "can't take part", str(text)] for text in status.get("others", ())]
    waiting = f"<p>Waiting for {escape(status['waiting'])}.</p>" if status.get("waiting") else ""
    head = f"{len(here)} of {status.get('clients')} clients are connected."
    shown = table(("client", "state", "why"), rows + others, label="Clients", text=(1, 2))
    return f"<section><h2>Who is there</h2><p>{escape(head)}</p>{waiting}{shown}</section>"


def _dropped(found: "Found") -> str:
    """Who was left out of the last rounds, and why."""
    rows = [
        [f"round {row['round']}", "; ".join(map(str, row.get("dropped", ()))) or "skipped"]
        for row in found.rows[-10:]
        if row.get("dropped") or row.get("skipped")
    ]
    shown = table(("round", "left out"), rows, label="Left out", text=(1,))
    return f"<section><h2>Left out lately</h2>{shown}</section>" if rows else ""
