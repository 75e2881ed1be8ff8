"""A run as one page: self-contained HTML, no network, no script."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedsofim.reports import theory
from fedsofim.reports.scores import section
from fedsofim.reports.svg import Point, heat_map, line_chart, strip_plot
from fedsofim.runs.directory import RunDir

AUDITED = ("test", "epsilon claimed", "lower bound", "confidence", "verdict")
SIMULATOR = "<p>This is the simulator's knowledge: no epsilon covers it.</p>"
MOST_ROWS = 100  # a picture of more clients would be larger than all the rest

STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:74rem;margin:2rem auto;padding:0 1rem}
h1{margin-bottom:0}p.lead{margin-top:.2rem;opacity:.75}h2{margin:2rem 0 .5rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,26rem),1fr));gap:1rem}
.charts svg{width:100%}svg{max-width:100%;height:auto}
.wide{overflow-x:auto}.wide svg{max-width:none}td.best{font-weight:700}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .75rem;text-align:right;white-space:nowrap;
border-bottom:1px solid #8884}th:first-child,td:first-child{text-align:left}
tbody th{font-weight:400}
.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.25rem 1.25rem}
pre{padding:1rem;background:#8881;border-radius:.5rem;white-space:pre-wrap;overflow-wrap:anywhere}
@media(max-width:40rem){th,td{padding:.25rem .4rem;font-size:.85rem}}
@media print{body{max-width:none;margin:0;font-size:11pt}svg,tr,pre{break-inside:avoid}
h2{break-after:avoid}.charts{grid-template-columns:1fr 1fr}
.wide{overflow:visible}.wide svg{max-width:100%}}
.warn{background:#b91c1c;color:#fff;padding:.5rem 1rem;border-radius:.5rem}
"""


def heat_map_of(partition: Mapping[str, Any]) -> str:
    """Records of each class at each client, as SVG; of the first `MOST_ROWS` of many clients."""
    counts = partition["counts"]
    title = "Records by client and class"
    if len(counts) > MOST_ROWS:
        title += f" (the first {MOST_ROWS} of {len(counts)} clients; partition.csv has all)"
    return heat_map(counts[:MOST_ROWS], title=title, rows="client", columns="class")


# Files of a simulated run's directory that no epsilon covers.
NOT_PRIVATE = {
    "partition.json": "each client's exact class counts",
    "partition.csv": "the same",
    "partition.svg": "the same",
    "clients.json": "how well each client's classes are served",
    "theory.json": "what the records' own gradients say of the paper's bounds",
    "theory.jsonl": "the same, of every round",
    "personal.json": "each client's score on its own test records",
    "personal.npz": "each client's own model, which stays with the client in a deployment",
    "checkpoint.npz": "what clients remember, and for some methods the noise itself",
    "config.yaml": "the seed, from which a simulation's noise follows",
    "summary.json": "the same, as this page, and the clients' accuracies",
}


def page_of(place: RunDir) -> str:
    """The page of a finished run, from what its directory holds."""

    def text(name: str) -> str:
        file = place.path / name
        return file.read_text() if file.is_file() else ""

    def values(name: str) -> Any:
        return place.read_json(name) if (place.path / name).is_file() else None

    partition = values("partition.json")
    simulated = "counts" in partition  # in a deployment class counts stay with their owners
    shown = simulated and place.config()["output"].get("counts")
    summary = values("summary.json")
    clients = (values("clients.json") if "client_accuracy" in summary else None) or ()
    kept = [name for name in NOT_PRIVATE if simulated and (place.path / name).is_file()]
    return render(
        text("config.yaml"),
        summary,
        place.metrics(),
        heat_map_of(partition) if shown else "",
        values("personal.json") or (),
        text("command.txt"),
        audit=values("audit.json"),
        not_private=kept,
        scores=section(values("scores.json"), clients)
        + theory.section(theory.read(place.path) if kept and values("theory.json") else None),
    )


def render(
    config: str,
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    partition: str,
    personal: Sequence[Mapping[str, Any]] = (),
    command: str = "",
    *,
    audit: Mapping[str, Any] | None = None,
    not_private: Sequence[str] = (),
    scores: str = "",
) -> str:
    """The page of one run.

    Args:
        config: the resolved config, as text.
        summary: the run in a few numbers.
        rows: one a round.
        partition: who holds what, as SVG.
        personal: one row a client, where clients have models of their own.
        command: what would start the same run again.
        audit: what `fedsofim audit` found, if it was asked.
        not_private: the files beside the page that no epsilon covers.
        scores: the sections about the final model and the theory, as HTML.
    """
    title = f"{summary['strategy']} on {summary['dataset']}"
    items = "".join(
        f"<tr><td>{escape(key.replace('_', ' '))}</td><td>{escape(_show(value))}</td></tr>"
        for key, value in summary.items()
    )
    warning = "" if summary["epsilon"] is not None else "<p class=warn>This run is not private.</p>"
    told = _not_covered(not_private) if summary["epsilon"] is not None else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
        f'<p class="lead">{_promise(summary)}</p>{warning}'
        f'<div class="charts">{_charts(rows)}</div><h2>Summary</h2><table>{items}</table>'
        f"{scores}{_audit(audit)}{_personal(str(summary['strategy']), personal)}"
        f"{_holdings(partition)}"
        f"{told}{_repeat(command)}<h2>Config</h2><pre>{escape(config)}</pre></main></body></html>\n"
    )


def _charts(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was measured, by round."""

    def curve(key: str, title: str, scale: float = 1.0) -> str:
        points = [Point(r["round"], r[key] * scale) for r in rows if r[key] is not None]
        return line_chart({title: points}, title=title, x="round") if points else ""

    accuracy = curve("accuracy", "Test accuracy, %", 100)
    loss, epsilon = curve("loss", "Test loss"), curve("epsilon", "Epsilon spent")
    return accuracy + loss + epsilon + _noise_chart(rows)


def _noise_chart(rows: Sequence[Mapping[str, Any]]) -> str:
    """The norm of the aggregate beside that of the noise in it."""
    series = {
        name: [Point(row["round"], row[key]) for row in rows if row.get(key) is not None]
        for name, key in (("aggregate", "gradient_norm"), ("noise in it", "noise_norm"))
    }
    title = "Norm of the aggregate (solid blue) and of the noise in it (orange)"
    return line_chart({k: v for k, v in series.items() if v}, title=title, x="round")


def _repeat(command: str) -> str:
    return f"<h2>To repeat</h2><pre>{escape(command)}</pre>" if command else ""


def _holdings(partition: str) -> str:
    if not partition:
        return ""
    return f'<h2>Who holds what</h2>{SIMULATOR}<div class="wide">{partition}</div>'


def _not_covered(files: Sequence[str]) -> str:
    """Which files beside the page are not to be shared if the data is private."""
    if not files:
        return ""
    items = "".join(f"<li><code>{name}</code>: {escape(NOT_PRIVATE[name])}</li>" for name in files)
    return (
        "<h2>What epsilon does not cover</h2><p>These files beside this page are the simulator's "
        f"knowledge. Do not share them if the records are private:</p><ul>{items}</ul>"
    )


def _audit(row: Mapping[str, Any] | None) -> str:
    """What an audit found, beside what is claimed."""
    if row is None:
        return ""
    body = "".join(
        f"<tr><td>{escape(test['test'])}</td><td>{test['epsilon_claimed']:.4g}</td>"
        f"<td>{test['epsilon_lower_bound']:.4g}</td><td>{100 * test['confidence']:.2f} %</td>"
        f"<td>{'within the claim' if test['passed'] else 'above the claim'}</td></tr>"
        for test in row["tests"]
    )
    body += "".join(
        f"<tr><td>{escape(name)}</td><td></td><td></td><td></td><td>not applicable</td></tr>"
        for name in row["not_applicable"]
    )
    details = "".join(
        f"<li>{escape(test['test'])}: {escape(test['detail'])}</li>" for test in row["tests"]
    )
    head = "".join(f"<th>{h}</th>" for h in AUDITED)
    refuted = "" if row["passed"] else "<p class=warn>An attack refutes the claim of this run.</p>"
    return (
        f"<h2>Audit</h2>{refuted}<p>What attacks on this config ({escape(row['of'])}) prove that "
        f"it gives away at least, at delta {row['delta']:g}; all together with "
        f"{row['confidence']:.0%} confidence. A low bound proves nothing.</p>"
        f"<table><tr>{head}</tr>{body}</table><ul>{details}</ul>"
    )


def _personal(strategy: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """How well each client's own model does: a dot, and a line of a table, for each."""
    if not rows:
        return ""
    accuracies = {strategy: [100 * row["accuracy"] for row in rows]}
    names = [name for name in rows[0] if name != "loss"]
    header = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_show(row[name]))}</td>' for name in names)}</tr>"
        for row in rows
    )
    return (
        "<h2>Personal models</h2>"
        "<p>Each client's own model on test records in its own class proportions: "
        f"a dot is a client, the bar is their mean.</p>{SIMULATOR}"
        f"{strip_plot(accuracies, title='Accuracy by client', x='accuracy, %')}"
        f"<details><summary>By client</summary><table><tr>{header}</tr>{body}</table></details>"
    )


def _promise(summary: Mapping[str, Any]) -> str:
    score = "" if summary["accuracy"] is None else f"{100 * summary['accuracy']:.2f} % "
    accuracy = f"{score}after {summary['rounds']} rounds"
    if summary["epsilon"] is None:
        return accuracy
    return f"{accuracy}, at epsilon {summary['epsilon']:.4g}, delta {summary['delta']:.3g} a record"


def _show(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)
