"""Reads finished runs back from their directories, and gives each a label that tells it apart."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from fedsofim.config.auto import chosen_in
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError, require
from fedsofim.reports.names import method
from fedsofim.reports.svg import Point
from fedsofim.runs.directory import Row, RunDir, finite
from fedsofim.studies.sweep import Sweep, data_and_partition

# What the label of a run leaves out: its heading says it, or it is the same for all seeds.
ELSEWHERE = ("strategy.name", "privacy.epsilon", "privacy.noise_multiplier", "seed")
# And what goes without saying, as null does.
USUAL = {
    "dataset.holdout": 0,
    "engine.name": "local",
    "model.name": "head",
    "participation": 1,
    "transform.name": "none",
}


class Curve(NamedTuple):
    """One run, as a page needs it.

    Attributes:
        label: what it is compared as; runs that differ in their seed alone have the same.
        setting: the data and the partition that it was run on.
        budget: the epsilon that its noise keeps; `None` without privacy.
        rows: its metrics, where it was scored.
        charged: what was released and what that cost, as its summary has it.
    """

    label: str
    setting: str
    budget: float | None
    rows: list[Row]
    charged: Row

    @property
    def final(self) -> float:
        """The last accuracy."""
        return float(self.rows[-1]["accuracy"])


class _Run(NamedTuple):
    config: Mapping[str, Any]
    rows: list[Row]
    charged: Row


def read(paths: Sequence[Path]) -> list[Curve]:
    """The scored runs in these directories, each a run's or a sweep's."""
    runs = [run for path in places(paths) for run in _runs(path) if run.rows]
    if not runs:
        raise ConfigError(f"{', '.join(map(str, paths))}: no round that was scored")
    flat = [_by_hand(dict(_flatten(run.config))) for run in runs]
    require(all("strategy.name" in one for one in flat), "a run's config.yaml names no strategy")
    settings = _settings([run.config for run in runs], flat)
    budgets = [_budget(run.charged) for run in runs]
    labels = _labels(flat, list(zip(settings, budgets, strict=True)))
    return [
        Curve(label, where, budget, run.rows, run.charged)
        for label, where, budget, run in zip(labels, settings, budgets, runs, strict=True)
    ]


DEPTH = 4  # folders that are searched for runs, as outputs/<date>/<run>


def places(paths: Sequence[Path]) -> list[Path]:
    """The runs and sweeps among these folders, each once; of any other folder, those inside it."""
    found: dict[Path, None] = {}
    for path in paths:
        require(path.is_dir(), f"{path}: there is no such directory")
        inside = list(search(path))
        require(bool(inside), f"{path}: neither a run nor a sweep, and holds none")
        found |= dict.fromkeys(place.resolve() for place in inside)
    return list(found)


def search(path: Path, depth: int = DEPTH) -> Iterable[Path]:
    """The runs and sweeps in a folder, however deep; not inside each other."""
    if is_place(path):
        yield path
    elif depth:
        for inner in sorted(p for p in path.iterdir() if p.is_dir() and p.name[0] != "."):
            yield from search(inner, depth - 1)


def is_place(path: Path) -> bool:
    """Whether a directory is a run's or a sweep's."""
    return is_sweep(path) or all(
        (path / name).is_file() for name in ("config.yaml", "metrics.jsonl")
    )


def grouped(
    curves: Sequence[Curve], budget: float | None, labels: Sequence[str]
) -> dict[str, list[Curve]]:
    """The runs of one budget by label; a label without runs stays, so that colours agree."""
    return {
        label: [c for c in curves if c.label == label and c.budget == budget] for label in labels
    }


def curve_points(curves: Sequence[Curve]) -> list[Point]:
    """Mean accuracy in percent and its spread over seeds, by round."""
    rounds = sorted({row["round"] for curve in curves for row in curve.rows})
    points = []
    for t in rounds:
        values = [100 * r["accuracy"] for c in curves for r in c.rows if r["round"] == t]
        points.append(Point(t, mean(values), stdev(values) if len(values) > 1 else 0.0))
    return points


def unscored(paths: Sequence[Path]) -> list[Path]:
    """The directories in which no round was scored: nothing of them can be drawn."""
    return [path for path in paths if not any(run.rows for run in _runs(path))]


def is_sweep(path: Path) -> bool:
    """Whether a directory is a sweep's."""
    return (path / "sweep.json").is_file()


def _runs(path: Path) -> Iterable[_Run]:
    if is_sweep(path):
        sweep = Sweep.open(path)
        for index, rows in sorted(sweep.finished().items()):
            yield _Run(sweep.values[index], rows, _charge(sweep.values[index]))
        return
    place = RunDir.open(path)
    config = place.config()
    if "counts" not in place.read_json("partition.json"):  # a deployment, which nobody dealt out
        config["partition"] = {**config["partition"], "kind": "each with its owner"}
    done = (path / "summary.json").is_file()
    rows = [row for row in place.metrics() if row["accuracy"] is not None]
    yield _Run(config, rows, place.read_json("summary.json") if done else _charge(config))


def _charge(values: Mapping[str, Any]) -> Row:
    """What a configuration releases in all its rounds, and what that costs."""
    config = parse(values)
    plan = config.plan()
    return {
        "releases": plan.releases,
        "clip": finite(plan.clip),
        "noise_std": plan.noise_std,
        "trust": config.privacy.trust,
        "epsilon": finite(config.epsilon()),
        "delta": plan.delta,
    }


def _budget(charged: Row) -> float | None:
    """Epsilon to four digits, so that runs with the same promise stand together."""
    epsilon = charged["epsilon"]
    return None if epsilon is None else float(f"{epsilon:.4g}")


def _by_hand(flat: Row) -> Row:
    """A run's values without those that `settings=auto` chose: each budget has its own."""
    chosen = chosen_in(str(flat.get("note", "")))

    def is_chosen(key: str, value: object) -> bool:
        told = chosen.get(key.rpartition(".")[2])
        return isinstance(value, int | float) and told == f"{value:.4g}"

    if not chosen:
        return flat
    kept = {k: v for k, v in flat.items() if k != "note" and not is_chosen(k, v)}
    return kept | {"settings": "auto"}


def _settings(configs: Sequence[Mapping[str, Any]], flat: Sequence[Row]) -> list[str]:
    """The data and the division of each run, with all that sets them apart."""
    plain = [data_and_partition(config) for config in configs]
    told = {"dataset.name", "partition.clients", "partition.kind", "partition.alpha"}
    out = []
    for where, one in zip(plain, flat, strict=True):
        others = [o for o, w in zip(flat, plain, strict=True) if w == where]
        keys = [k for k in one if k.startswith(("dataset.", "partition.")) and k not in told]
        out.append(", ".join([where, *_words(one, keys, others)]))
    return out


def _labels(flat: Sequence[Row], headings: Sequence[tuple[str, float | None]]) -> list[str]:
    """The strategy of each run, and what else sets it apart from others under its heading."""
    out = []
    for one, heading in zip(flat, headings, strict=True):
        rivals = [
            other
            for other, its in zip(flat, headings, strict=True)
            if its == heading and other["strategy.name"] == one["strategy.name"]
        ]
        here = ("output.", "dataset.", "partition.")
        keys = [k for k in one if k not in ELSEWHERE and not k.startswith(here)]
        private = any(budget is not None for _, budget in headings)
        name = method(str(one["strategy.name"]), private)
        out.append(", ".join([name, *_words(one, keys, rivals)]))
    return out


def _words(one: Row, keys: Iterable[str], others: Sequence[Row]) -> list[str]:
    """The values of those keys that differ among the others, or among those of the same name."""
    words = []
    for key in keys:
        group, _, last = key.rpartition(".")
        kin = others
        if last != "name":
            kin = [o for o in others if o.get(f"{group}.name") == one.get(f"{group}.name")]
        if len({str(o.get(key)) for o in kin}) > 1 and one[key] != USUAL.get(key):
            words.append(f"{group if last == 'name' else last} {one[key]}")
    return words


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
