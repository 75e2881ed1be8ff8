"""A run's model card, in the form that Hugging Face reads: Markdown under YAML.

It is meant to travel with the model. So it holds nothing that no epsilon covers: no class counts,
no seed, no path, no score on private records.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from fedsofim.config.schema import Config, parse
from fedsofim.core.shipped import described
from fedsofim.data.datasets import CIFAR, MEDMNIST
from fedsofim.reports.names import method
from fedsofim.runs.directory import Row, RunDir

NAME = "card.md"
LARGE = 700.0  # an epsilon whose exponential is no number
TRUST = {
    "server": "the server sees every client's release; each client alone hides its records",
    "aggregate": "only sums over clients may be seen, which takes secure aggregation",
}
ADJACENCY = {
    "replace-one": "one record is replaced by any other",
    "add-remove": "one record is added or removed",
}
USE = """## Use

```sh
fedsofim predict DIR images-or-features     # labels and probabilities, as CSV
fedsofim export DIR --to onnx               # or torch, sklearn, safetensors
```

`model.npz` holds `theta`; from Python it is `fedsofim.load(DIR).model`.
"""


def card_of(place: RunDir) -> str:
    """The card of a finished run, from what its directory holds."""
    config, summary = parse(place.config()), place.read_json("summary.json")
    partition = place.read_json("partition.json")
    simulated = "counts" in partition  # in a deployment class counts stay with their owners
    records = sum(size or 0 for size in partition.get("sizes", []))
    classes = partition.get("classes", ())
    return render(config, summary, simulated=simulated, records=records, classes=classes)


def render(
    config: Config, summary: Row, *, simulated: bool, records: int, classes: Sequence[object] = ()
) -> str:
    """The card.

    Args:
        config: of the run.
        summary: the run in a few numbers.
        simulated: whether it was no deployment.
        records: how many there are, for the doubt about delta; clients' sizes are public.
        classes: what they are called, if they have names.
    """
    scores = _scores(config, summary)
    head = yaml.safe_dump(front_matter(config, summary, scores), sort_keys=False, width=1000)
    sections = (
        f"# {_title(config, summary)}\n\n{_lead(config, summary, scores)}\n",
        _section("Privacy", _privacy(config, summary)),
        _section("Data", _data(config, classes, simulated)),
        _section("Method", _method(config, summary)),
        _results(config, scores),
        "## Limits\n\n"
        + "".join(f"- {line}\n" for line in _limits(config, summary, simulated, records)),
        USE,
    )
    return f"---\n{head}---\n\n" + "\n".join(sections)


def front_matter(config: Config, summary: Row, scores: Mapping[str, float]) -> dict[str, Any]:
    """What Hugging Face reads of a card: tags, the task, and the scores."""
    data, task = config.dataset.name, _task(config)
    tags = ["federated-learning", *(["differential-privacy"] if _private(summary) else [])]
    out: dict[str, Any] = {"library_name": "fedsofim", "tags": [*tags, config.strategy_name]}
    if task:
        out["pipeline_tag"] = task
    if "accuracy" not in scores:
        return out
    result = {
        "task": {"type": task or "other"},
        "dataset": {"type": data, "name": data},
        "metrics": [{"type": "accuracy", "name": "Test accuracy", "value": scores["accuracy"]}],
    }
    index = [{"name": f"{config.strategy_name}-{data}", "results": [result]}]
    return {**out, "metrics": ["accuracy"], "model-index": index}


def _task(config: Config) -> str | None:
    name = config.dataset.name
    if name in (*CIFAR, *MEDMNIST, "folder") or not config.model.linear:
        return "image-classification"
    return None if name == "owners" else "tabular-classification"


def _private(summary: Row) -> bool:
    return summary["epsilon"] is not None


def _scores(config: Config, summary: Row) -> dict[str, float]:
    """The scores on the server's own test set, where it has one and there is one model."""
    if config.client.keeps_models or config.dataset.holdout:
        return {}
    named = {name: summary[name] for name in ("accuracy", "loss")}
    return {name: round(v, 6) for name, v in named.items() if v is not None and math.isfinite(v)}


def _title(config: Config, summary: Row) -> str:
    return f"{method(config.strategy_name, _private(summary))} on {config.dataset.name}"


def _lead(config: Config, summary: Row, scores: Mapping[str, float]) -> str:
    n, rounds = summary["clients"], summary["rounds"]
    told = f"A classifier that {n} clients trained together in {rounds} rounds, each keeping its "
    told += "records to itself"
    if "accuracy" in scores:
        told += f": {100 * scores['accuracy']:.2f} % of the test records are told right"
    if not _private(summary):
        return f"{told}.\n\n**This run is not private: anything about a record may leak.**"
    other = {"replace-one": "been another", "add-remove": "been absent"}[summary["adjacency"]]
    epsilon = summary["epsilon"]
    bound = f"{math.exp(epsilon):.3g}" if epsilon < LARGE else f"exp({epsilon:.3g})"
    return (
        f"{told}. It is differentially private: had any one record {other}, whatever the model "
        f"makes anyone conclude would be at most {bound} times as likely, or as unlikely, "
        f"but for a chance of {summary['delta']:g}."
    )


def _section(title: str, rows: Mapping[str, object]) -> str:
    lines = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    return f"## {title}\n\n| | |\n|---|---|\n{lines}"


def _privacy(config: Config, summary: Row) -> dict[str, object]:
    if not _private(summary):
        return {"promise": "none"}
    adjacency, trust = summary["adjacency"], summary["trust"]
    return {
        "epsilon": f"{summary['epsilon']:.6g}",
        "delta": f"{summary['delta']:g}",
        "unit": "one record of one client, over the whole run",
        "adjacency": f"{adjacency}: {ADJACENCY[adjacency]}; clients' sizes are public",
        "trust": f"{trust}: {TRUST[trust]}",
        "mechanism": "Gaussian noise on sums of clipped contributions; exact composition (GDP)",
        "noise": f"{config.privacy.noise}, multiplier {summary['noise_multiplier']:.6g}",
    }


def _data(config: Config, classes: Sequence[object], simulated: bool) -> dict[str, object]:
    name, linear = config.dataset.name, config.model.linear
    known = described("dataset", name).rstrip(".")
    rows: dict[str, object] = {"data set": f"{name}: {known}" if known else name}
    dealt = config.partition.name if simulated else "each with its owner"
    rows["clients"] = f"{config.partition.clients} ({dealt})"
    if classes:
        rows["classes"] = ", ".join(map(str, classes))
    if linear and _task(config) == "image-classification":
        rows["features"] = f"from a frozen {config.backbone.name} ({_weights(config)} weights)"
    return rows


def _weights(config: Config) -> str:
    known = config.backbone.weights
    return known if known in ("own", "hub", "random") else "the user's"


def _method(config: Config, summary: Row) -> dict[str, object]:
    told = described("strategy", config.strategy_name).rstrip(".")
    rows: dict[str, object] = {
        "strategy": f"{config.strategy_name}: {told}" if told else config.strategy_name,
        "model": config.model.name,
        "rounds": summary["rounds"],
        "participation": f"{100 * summary['participation']:g} % of the clients in a round",
        "aggregation": summary["aggregation"],
        "clip": "none" if summary["clip"] is None else f"{summary['clip']:g}",
    }
    if config.transform.name != "none":
        rows["transform"] = config.transform.name
    return rows | ({"settings": config.note} if config.note else {})


def _results(config: Config, scores: Mapping[str, float]) -> str:
    if scores:
        return _section("Results, on the test set", {k: f"{v:.4g}" for k, v in scores.items()})
    why = "the server had no test set"
    if config.client.keeps_models:
        why = "each client has a model of its own, and its score tells of its records"
    elif config.dataset.holdout:
        why = "it was scored on training records that were held out, which are private"
    return f"## Results\n\nNone that may be shared: {why}.\n"


def _limits(config: Config, summary: Row, simulated: bool, records: int) -> Iterator[str]:
    """What the promise does not say."""
    if _private(summary):
        yield "The unit is a record: of someone with many records, more may be learnt."
        if simulated and config.privacy.noise == "seeded":
            yield (
                "This was a simulation, with noise from a seed. Whoever has the seed, or guesses "
                "it, can subtract the noise: for private records use `privacy.noise=exact`, or a "
                "deployment."
            )
        if simulated:
            yield (
                "Other files of the run's directory are not covered by epsilon; `report.html` "
                "lists them. This card, and with exact noise `model.npz`, are."
            )
        if config.privacy.trust == "aggregate":
            yield "It holds only if secure aggregation hid each client's release from the server."
        if doubt := config.privacy.doubt(records):
            yield f"Weak promise: {doubt}."
        yield "Settings that were chosen by trying them on private records are not covered."
    yield "The scores are of one test set; on other populations it may do worse, unevenly so."
    yield "Nobody has checked it for decisions about people."


def write(place: RunDir) -> None:
    """Write the card of a finished run into its directory."""
    place.write(NAME, card_of(place).encode())
