"""What a run's page says first: how good the model is, what is promised, and what that cost."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from fedsofim import __version__
from fedsofim.reports import names
from fedsofim.reports.page import warning
from fedsofim.runs.directory import Row, RunDir

if TYPE_CHECKING:
    from fedsofim.reports.run_page import Found

MOST_NEIGHBOURS = 200  # runs beside this one that are looked at


class Headline(NamedTuple):
    """The top of a page: plain texts, and warning as HTML."""

    title: str
    kicker: str
    answer: str
    meaning: str
    warning: str
    facts: list[str]
    tiles: list[tuple[str, str, str]]

    @classmethod
    def of(cls, found: "Found") -> "Headline":
        """What is known of a run, finished or not."""
        row = found.summary or (found.rows[-1] if found.rows else {})
        epsilon, mu = row.get("epsilon"), found.released.mu()
        private = epsilon is not None if row else _plans_privacy(found.config)
        strategy = names.method(found.config["strategy"]["name"], private)
        title = f"{strategy} on {names.data(found.config['dataset']['name'])}"
        delta = found.config["privacy"].get("delta")
        meaning = names.meaning(epsilon, delta, mu) if row else ""
        told = "" if private else warning("This run is not private.")
        answer = _answer(found, row, private)
        kicker = f"{title} · {_who(found)}"
        return cls(title, kicker, answer, meaning, told, _facts(found), list(_tiles(found, row)))


def _plans_privacy(config: Row) -> bool:
    return math.isfinite(float(config["privacy"].get("epsilon") or math.inf))


def _who(found: "Found") -> str:
    clients = found.config["partition"].get("clients") or found.partition.get("clients")
    return f"{clients} clients, {found.config['rounds']} rounds"


def _answer(found: "Found", row: Row, private: bool) -> str:
    """The run in one sentence."""
    if not row:
        return "The first round is under way."
    score, epsilon = row.get("accuracy"), row.get("epsilon")
    promise = "without any privacy"
    if private:
        promise = f"and every record is protected with epsilon {epsilon:.3g}"
        if epsilon == 0:
            promise = "and nothing leaves a client"
    if score is None:
        done = "is trained" if found.summary else f"is in round {row['round']}"
        return f"The model {done}, {promise}. The server has no test records to score it on."
    whose = "of their own test records" if "accuracy_std" in row else "of the test records"
    subject = "The clients' own models tell" if "accuracy_std" in row else "The model tells"
    so_far = "" if found.summary else f" after round {row['round']}"
    return f"{subject} {100 * score:.1f} % {whose} right{so_far}, {promise}."


def _facts(found: "Found") -> list[str]:
    """When, with which version, on what."""
    about: Row = found.json("about.json") or {}
    engine = names.ENGINES.get(found.config["engine"]["name"], found.config["engine"]["name"])
    kind = "simulation" if found.simulated else "deployment: records stayed with their owners"
    finished, file = about.get("finished", ""), found.place.path / "summary.json"
    if not finished and found.summary:  # a run of an older release
        finished = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat()
    features = about.get("features")
    return [
        f"{finished[:10]} {finished[11:16]} UTC" if finished else "under way",
        f"fedsofim {about.get('version', __version__)}",
        f"{kind}, engine {found.config['engine']['name']} ({engine})",
        *([f"trained on {about['device']}"] if about.get("device") else []),
        *([f"features made on {features}"] if features else []),
    ]


def _tiles(found: "Found", row: Row) -> Iterator[tuple[str, str, str]]:
    config, private = found.config, row.get("epsilon") is not None
    if row.get("accuracy") is not None:
        balanced = row.get("balanced_accuracy")
        note = f"balanced over classes: {100 * balanced:.1f} %" if balanced is not None else ""
        if row.get("accuracy_std") is not None:
            note = f"± {100 * row['accuracy_std']:.1f} over clients"
        yield "Test accuracy", f"{100 * row['accuracy']:.1f} <small>%</small>", note
    if private:
        adjacency = config["privacy"].get("adjacency", "replace-one")
        note = f"delta {names.small(config['privacy']['delta'])}, one record ({adjacency})"
        yield "Epsilon spent", f"{row['epsilon']:.3g}", note
    if found.summary and private:
        yield from _against(found, found.summary)
    trust = {"server": "the server sees each client's release", "aggregate": "only sums are seen"}
    if private:
        whom = str(config["privacy"].get("trust"))
        yield "Who is trusted", escape(whom), trust.get(whom, "")
    clients = config["partition"].get("clients") or found.partition.get("clients")
    sizes = [size for size in found.partition.get("sizes", []) if size]
    dealt = f", {_dealt(config['partition'])}" if found.simulated else ""
    note = f"{sum(sizes):,} records{dealt}" if sizes else ""
    yield "Clients", str(clients), note
    if row.get("seconds") is not None:
        done = row.get("rounds", row.get("round"))
        yield "Training time", escape(names.duration(row["seconds"])), f"{done} rounds"


def _dealt(partition: Row) -> str:
    """How the records were dealt out: Dirichlet 0.5."""
    kind = str(partition.get("kind", ""))
    alpha = f" {partition['alpha']:g}" if kind == "dirichlet" and "alpha" in partition else ""
    return names.division(kind + alpha)


def _against(found: "Found", summary: Row) -> Iterator[tuple[str, str, str]]:
    """What privacy cost, and what DP-FedGD reaches, where runs beside this one tell.

    A page of a run with exact noise is covered by its epsilon; another run's score would not be.
    """
    if not found.simulated or found.config["privacy"].get("noise") != "seeded":
        return
    if summary.get("accuracy") is None:
        return
    beside = list(_neighbours(found.place.path, found.config, summary))
    free = [s for s in beside if s["strategy"] == summary["strategy"] and s["epsilon"] is None]
    plain = [s for s in beside if s["strategy"] == "fedgd" and _same(s, summary)]
    if free:
        gap = 100 * (summary["accuracy"] - free[0]["accuracy"])
        reached = f"{names.percent(free[0]['accuracy'])} % without privacy"
        yield "Cost of privacy", _points(gap), f"{reached} (that run is not covered by epsilon)"
    if plain and summary["strategy"] != "fedgd":
        gap = 100 * (summary["accuracy"] - plain[0]["accuracy"])
        reached = f"which reaches {names.percent(plain[0]['accuracy'])} % at the same epsilon"
        yield "Against DP-FedGD", _points(gap), reached


def _points(gap: float) -> str:
    sign = "+" if gap > 0 else "−" if gap < 0 else "±"
    return f"{sign}{abs(gap):.1f} <small>points</small>"


def _same(one: Row, other: Row) -> bool:
    return one["epsilon"] is not None and all(
        math.isclose(one[key] or 0, other[key] or 0, rel_tol=1e-3) for key in ("epsilon", "delta")
    )


def _neighbours(path: Path, config: Row, summary: Row) -> Iterator[Row]:
    """The summaries of finished runs beside this one, on the same data, division and seed."""
    keys = ("dataset", "model", "clients", "seed", "rounds")
    if not path.parent.is_dir():
        return
    others = [p for p in sorted(path.parent.iterdir())[:MOST_NEIGHBOURS] if p != path]
    for other in others:
        try:
            found: Any = RunDir(other).read_json("summary.json")
            if found.get("accuracy") is None or any(found.get(k) != summary[k] for k in keys):
                continue
            theirs = yaml.safe_load((other / "config.yaml").read_text())
            same = all(theirs[k] == config[k] for k in ("dataset", "partition", "backbone"))
        except Exception:  # not a run, or one that is being written
            continue
        if same and theirs["privacy"].get("noise") == "seeded":
            yield found
