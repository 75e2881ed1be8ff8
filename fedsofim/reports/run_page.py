"""A run as one page, finished or under way: the answer first, then what is behind it."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from fedsofim.reports import live, names, privacy, theory
from fedsofim.reports.audit import audited
from fedsofim.reports.charts import dots, grid, matrix
from fedsofim.reports.headline import Headline
from fedsofim.reports.lines import coinciding, lines
from fedsofim.reports.page import (
    contents,
    folded,
    header,
    page,
    section,
    table,
    tiles,
    uncovered,
)
from fedsofim.reports.scores import by_client, how_good
from fedsofim.reports.svg import Point, heat_map
from fedsofim.runs.directory import Row, RunDir
from fedsofim.runs.extension import with_noise
from fedsofim.runs.record import Released

SIMULATOR = "This is the simulator's knowledge; in a deployment it stays with each owner."
MOST_ROWS = 100  # a picture of more clients would be larger than all the rest


def heat_map_of(partition: Mapping[str, Any]) -> str:
    """Records of each class at each client, as SVG; of the first `MOST_ROWS` of many clients."""
    counts = partition["counts"]
    return heat_map(counts[:MOST_ROWS], title=_held(counts), rows="client", columns="class")


def _held(counts: Sequence[Sequence[int]]) -> str:
    title = "Records by client and class"
    if len(counts) > MOST_ROWS:
        title += f" (the first {MOST_ROWS} of {len(counts)} clients; partition.csv has all)"
    return title


def held_chart(partition: Mapping[str, Any], named: Sequence[str] = (), title: str = "") -> str:
    """The same as a chart of a page."""
    counts = partition["counts"]
    columns = list(named) or names.classes(len(counts[0]), partition)
    rows = [str(i) for i in range(len(counts[:MOST_ROWS]))]
    return matrix(
        title or _held(counts),
        counts[:MOST_ROWS],
        rows=rows,
        columns=columns,
        x="class",
        y="client",
    )


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
    "summary.json": "the seed again, and how the clients fare",
}


class Found(NamedTuple):
    """What a run's directory holds, as far as it came.

    Attributes:
        place: the directory.
        config: as it was started.
        rows: one a round.
        summary: the run in a few numbers; `None` until it is finished.
        partition: who holds what, as far as that is known here.
    """

    place: RunDir
    config: Row
    rows: list[Row]
    summary: Row | None
    partition: Row

    @classmethod
    def read(cls, place: RunDir) -> "Found":
        """Read it."""
        done = (place.path / "summary.json").is_file()
        summary = place.read_json("summary.json") if done else None
        partition = place.read_json("partition.json")
        return cls(place, place.config(), place.metrics(), summary, partition)

    @property
    def simulated(self) -> bool:
        """Whether it is no deployment, where class counts stay with their owners."""
        return "counts" in self.partition

    @property
    def released(self) -> Released:
        """What was released so far: a checkpoint may be older than the last row."""
        record = self.place.record()
        if self.summary is not None or not self.rows:
            return record.released
        config = with_noise(self.config, record.noise_multiplier)
        return record.after(config, config.plan(), len(self.rows)).released

    def json(self, name: str) -> Any:
        """The content of a file, or `None`."""
        return self.place.read_json(name) if (self.place.path / name).is_file() else None

    def text(self, name: str) -> str:
        """The text of a file, or nothing."""
        file = self.place.path / name
        return file.read_text() if file.is_file() else ""


def page_of(place: RunDir, *, every: int = 0, status: Mapping[str, Any] | None = None) -> str:
    """The page of a run, from what its directory holds.

    Args:
        place: the directory.
        every: milliseconds after which the page asks for itself anew, while the run goes on.
        status: who is connected, where a server tells.
    """
    found = Found.read(place)
    head = Headline.of(found)
    body = _sections(found)
    shown = "".join(section(title, text) for title, text in body)
    top = (
        f"{header(head.kicker, head.answer, head.facts, head.meaning, head.warning)}"
        f"{live.progress(found, status) if found.summary is None else ''}"
        f"{tiles(head.tiles)}{contents(body)}"
    )
    return page(head.title, top + shown, every=every)


def _sections(found: Found) -> list[tuple[str, str]]:
    scores = found.json("scores.json")
    count = len((scores or {}).get("classes", ()))
    named = names.classes(count, found.partition, scores, found.config.get("dataset"))
    summary = found.summary or {}
    clients = found.json("clients.json") if "client_accuracy" in summary else None
    theoretical = found.simulated and found.json("theory.json")
    measured = theory.read(found.place.path) if theoretical else None
    return [
        ("How it learned", _learned(found)),
        ("How good it is", how_good(scores, named, _whose(found))),
        ("By client", by_client(clients or (), SIMULATOR)),
        ("Personal models", _personal(found)),
        ("What was released and charged", privacy.charged(found)),
        ("Noise beside signal", privacy.noise(found)),
        ("Theory, measured", theory.section(measured)),
        ("Audit", audited(found.json("audit.json"))),
        ("Who holds what", _holdings(found, named)),
        ("What epsilon does not cover", _not_covered(found)),
        ("To repeat", _repeat(found)),
    ]


def _whose(found: Found) -> str:
    """What must be said of the records that the scores are about."""
    if found.config["dataset"].get("holdout"):
        return "The scores are of training records that were held out, which are private."
    if found.json("personal.json"):
        return "The scores are of each client's own model on its own test records. " + SIMULATOR
    return ""


def _learned(found: Found) -> str:
    """What was measured, by round."""

    def points(key: str, scale: float = 1.0) -> list[Point]:
        rows = (row for row in found.rows if row.get(key) is not None)
        return [Point(row["round"], row[key] * scale) for row in rows]

    accuracy = {"accuracy": points("accuracy", 100)}
    if any("balanced_accuracy" in row for row in found.rows):
        accuracy["balanced accuracy (mean over classes)"] = points("balanced_accuracy", 100)
    if all(accuracy.values()) and coinciding(
        accuracy
    ):  # classes are equally many: one line says it
        accuracy = dict([next(iter(accuracy.items()))])
    loss = lines(
        "Test loss",
        {"loss": points("loss")},
        x="round",
        y="loss (cross-entropy)",
        about="How surprised the model is by the true class: lower is better.",
        digits=3,
    )
    return grid(
        lines(
            "Test accuracy",
            accuracy,
            x="round",
            y="accuracy, %",
            unit=" %",
            about="Part of the test records that the model tells right, after each round.",
        ),
        loss,
    )


def _personal(found: Found) -> str:
    """How well each client's own model does: a dot, and a line of a table, for each."""
    rows: Sequence[Row] = found.json("personal.json") or ()
    if not rows:
        return ""
    accuracies = {"own models": [(f"client {r['client']}", 100 * r["accuracy"]) for r in rows]}
    header = [name for name in rows[0] if name != "loss"]
    cells = [[_show(row[name]) for name in header] for row in rows]
    shown = table([name.replace("_", " ") for name in header], cells, sortable=True)
    about = (
        "Each client's own model on test records in its own class proportions: a dot is a client, "
        "the bar is their mean."
    )
    chart = dots("Accuracy of each client's own model", accuracies, x="accuracy, %", about=about)
    return uncovered(SIMULATOR) + chart + folded("All clients", shown)


def _holdings(found: Found, named: Sequence[str]) -> str:
    shown = found.simulated and found.config["output"].get("counts")
    return uncovered(SIMULATOR) + held_chart(found.partition, named) if shown else ""


def _not_covered(found: Found) -> str:
    """Which files beside the page are not to be shared if the data is private."""
    here: Path = found.place.path
    files = [name for name in NOT_PRIVATE if found.simulated and (here / name).is_file()]
    if not files or found.summary is None or found.summary["epsilon"] is None:
        return ""
    items = "".join(f"<li><code>{name}</code>: {escape(NOT_PRIVATE[name])}</li>" for name in files)
    told = (
        "These files beside this page are the simulator's knowledge. Do not share them if the "
        "records are private."
    )
    return f"{uncovered(told)}<ul>{items}</ul>"


def _repeat(found: Found) -> str:
    """The command, every figure of the summary, and the config, folded."""
    command = found.text("command.txt")
    figures = [[key.replace("_", " "), _show(v)] for key, v in (found.summary or {}).items()]
    return (
        (f"<pre>{escape(command)}</pre>" if command else "")
        + folded("Every figure of summary.json", table(("figure", "value"), figures))
        + folded("Config", f"<pre>{escape(found.text('config.yaml'))}</pre>")
    )


def _show(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)
