"""DP-FedGD and DP-FedSOFIM with and without KFC: tune on held-out records, test, write docs/kfc.md.

python scripts/kfc_table.py [--jobs 2]

Every method chooses its learning rate and its clip from grids of the same size. What was computed
stays in --cache, so an interrupted table continues.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsofim.config.compose import compose_many
from fedsofim.config.schema import parse
from fedsofim.core.linalg import inverse_root
from fedsofim.data.datasets import DatasetConfig, load
from fedsofim.studies.results import Results, curve_of

ROOT = Path(__file__).resolve().parent.parent
DATASETS = {"cifar10": "CIFAR-10", "pathmnist": "PathMNIST"}
EPSILONS = (0.5, 1, 3, 10)
SEEDS = (0, 1, 2)
TUNING = ["dataset.holdout=0.2", "seed=100"]
FIXED = ["aggregation=size", "rounds=70"]

CLIPS = (0.625, 1.25, 2.5, 5, 10, 20, 40)
STEPS = (0.25, 0.5, 1, 2, 4, 8, 16)  # FedGD: the rate is this over the clip
RATES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)  # SOFIM
SOFIM = ["strategy=sofim", "strategy.rho=0.5", "strategy.beta=0.9"]
SOFIM += ["strategy.bias_correction=false", "strategy.warmup=0"]
DAMPING = 1e-3  # the default
ORACLE = ["transform=oracle", "transform.i_know_this_is_not_private=true"]


class Run(NamedTuple):
    """One run: what it is called in the tables, and its overrides."""

    dataset: str
    method: str
    epsilon: float
    settings: tuple[str, ...]
    extra: tuple[str, ...]

    @property
    def overrides(self) -> list[str]:
        """The config."""
        chosen = [f"dataset={self.dataset}", f"privacy.epsilon={self.epsilon}"]
        return [*FIXED, *chosen, *self.settings, *self.extra]


def settings(method: str) -> list[list[str]]:
    """The grid that a method chooses from."""
    transform = ["transform=kfc"] if "KFC" in method else []
    if "FedGD" in method:
        rule, rates = ["strategy=fedgd"], [(s / c, c) for c in CLIPS for s in STEPS]
    else:
        rule, rates = SOFIM, [(r, c) for c in CLIPS for r in RATES]
    return [
        [*rule, *transform, f"strategy.lr={lr:g}", f"privacy.clip={clip:g}"] for lr, clip in rates
    ]


METHODS = ("FedGD", "SOFIM", "KFC + FedGD", "KFC + SOFIM")


class Accuracies(dict[Run, float]):
    """Of finished runs, in percent."""

    def compute(self, results: Results, runs: Sequence[Run], jobs: int) -> None:
        """Run what is not there yet."""
        configs = [parse(values) for values in compose_many([run.overrides for run in runs])]

        def show(done: int, total: int) -> None:
            if done % 32 == 0 or done == total:
                print(f"{done} of {total} runs", flush=True)

        rows = results.run(configs, lambda _, r: curve_of(r), every=70, jobs=jobs, show=show)
        self.update(zip(runs, (100 * row["curve"][-1]["accuracy"] for row in rows), strict=True))


def grids() -> dict[tuple[str, str, float], list[Run]]:
    """What each method chooses from, on held-out training records."""
    return {
        (d, m, e): [Run(d, m, e, tuple(s), tuple(TUNING)) for s in settings(m)]
        for d in DATASETS
        for m in METHODS
        for e in EPSILONS
    }


def finals(best: dict[tuple[str, str, float], Run]) -> dict[tuple[str, str, float], list[Run]]:
    """The runs of the table, one for each seed."""
    rows: dict[tuple[str, str, float], tuple[str, ...]] = {k: r.settings for k, r in best.items()}
    for dataset in DATASETS:
        for e in EPSILONS:
            for name, rule in (("FedGD", "strategy=fedgd"), ("SOFIM", "strategy=sofim")):
                uniform = (rule, "aggregation=uniform")
                rows[dataset, f"{name}, published settings", e] = (rule,)
                rows[dataset, f"{name}, published settings, uniform aggregation", e] = uniform
            ours = [o for o in rows[dataset, "KFC + SOFIM", e] if o != "transform=kfc"]
            rows[dataset, "oracle + SOFIM (not private)", e] = (*ours, *ORACLE)
    return {
        (d, m, e): [Run(d, m, e, s, (f"seed={seed}",)) for seed in SEEDS]
        for (d, m, e), s in rows.items()
    }


def page(accuracy: Accuracies, best: dict[tuple[str, str, float], Run], text: str) -> str:
    """The page: its text with the tables in place."""
    runs = finals(best)
    names = list(dict.fromkeys(method for _, method, _ in runs))
    for dataset, name in DATASETS.items():
        scores = {
            (m, e): [accuracy[run] for run in runs[dataset, m, e]] for m in names for e in EPSILONS
        }
        lines = [[m, *(_cell(scores[m, e]) for e in EPSILONS)] for m in names]
        gains = []
        for e in EPSILONS:
            mean = {m: statistics.mean(scores[m, e]) for m in METHODS}
            gains.append(f"{mean['KFC + SOFIM'] - max(mean['FedGD'], mean['SOFIM']):+.1f}")
        lines.insert(4, ["**KFC + SOFIM over the best without KFC**", *gains])
        chosen = [
            [m, *(_settings(best[dataset, m, e], accuracy) for e in EPSILONS)] for m in METHODS
        ]
        text = text.replace(f"<!-- {dataset} -->", f"### {name}\n\n{_table(lines)}")
        text = text.replace(f"<!-- {dataset} settings -->", f"{name}:\n\n{_table(chosen)}")
    return text.replace("<!-- conditioning -->", conditioning())


def conditioning() -> str:
    """How evenly the data's features are spread under each transform's factor on their side."""
    lines = []
    for dataset, name in DATASETS.items():
        data = load(DatasetConfig(name=dataset))
        A, probes = (_second_moment(x) for x in (data.train_x, data.probe_x))
        factors = {"as they are": np.eye(len(A)), "KFC": inverse_root(probes, DAMPING)}
        for label, U in {**factors, "oracle": inverse_root(A, DAMPING)}.items():
            w = np.linalg.eigvalsh(U @ A @ U)
            rank = w.sum() ** 2 / (w**2).sum()
            lines.append([f"{name}, {label}", f"{100 * w[-1] / w.sum():.0f} %", f"{rank:.1f}"])
    return _table(lines, ["", "largest eigenvalue's share", "effective dimensions of 65"])


def _second_moment(x: Any) -> Any:
    x = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
    return x.T @ x / len(x)


def _cell(values: list[Any]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def _settings(run: Run, accuracy: Accuracies) -> str:
    lr, clip = (o.partition("=")[2] for o in run.settings[-2:])
    return f"{float(lr):.3g}, {clip} ({accuracy[run]:.1f})"


def _table(lines: list[list[str]], head: list[str] | None = None) -> str:
    head = head or ["", *(f"eps {e}" for e in EPSILONS)]
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def main() -> None:
    """Compute what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--cache", type=Path, default=ROOT / "outputs" / "kfc-table.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "kfc.md")
    arguments = parser.parse_args()
    results, accuracy = Results(arguments.cache), Accuracies()
    accuracy.compute(results, [run for runs in grids().values() for run in runs], arguments.jobs)
    best = {key: max(runs, key=accuracy.__getitem__) for key, runs in grids().items()}
    accuracy.compute(results, [r for runs in finals(best).values() for r in runs], arguments.jobs)
    template = Path(__file__).with_suffix(".md").read_text()
    arguments.out.write_text(page(accuracy, best, template))
    print(f"Written to {arguments.out}")


if __name__ == "__main__":
    main()
