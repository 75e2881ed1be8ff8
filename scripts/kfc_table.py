"""DP-FedGD and DP-FedSOFIM with and without KFC: tune on held-out records, test, write docs/kfc.md.

python scripts/kfc_table.py            the whole table, about 40 minutes on one core
python scripts/kfc_table.py --jobs 4   in four processes

What was computed stays in --cache, so an interrupted table continues.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from data.datasets import EMBEDDED
from fedsofim.compose import compose
from fedsofim.engines.local import run
from fedsofim.experiment import Experiment, begin, parse, prepare

ROOT = Path(__file__).resolve().parent.parent
DATASETS = {"cifar10": "CIFAR-10", "pathmnist": "PathMNIST"}
EPSILONS = (0.5, 1, 3, 10)
SEEDS = (0, 1, 2)
TUNING_SEED = 100
BUDGET = 20  # runs that each method may spend on its settings, at each epsilon and data set
HELD_OUT = 0.2

SOFIM = ["strategy=sofim", "strategy.rho=0.5", "strategy.beta=0.9"]
SOFIM += ["strategy.bias_correction=false", "strategy.warmup=0"]
# Overrides, and where the search begins: the learning rate and the clip.
METHODS: dict[str, tuple[list[str], tuple[float, float]]] = {
    "FedGD": (["strategy=fedgd"], (0.1, 10)),
    "SOFIM": (SOFIM, (0.4, 10)),
    "KFC + FedGD": (["strategy=fedgd", "transform=kfc"], (0.1, 10)),
    "KFC + SOFIM": ([*SOFIM, "transform=kfc"], (0.4, 10)),
}
FIXED = ["aggregation=size", "rounds=70", "partition=dirichlet"]
Settings = tuple[float, float]


@lru_cache(maxsize=2)
def _prepared(data: tuple[str, ...], transform: str, seed: int) -> Experiment:
    """Data, clients and initial parameters, which do not depend on the settings."""
    overrides = [*data, *FIXED, f"transform={transform}", f"seed={seed}", *_not_private(transform)]
    return prepare(parse(compose(overrides)))


def _not_private(transform: str) -> list[str]:
    return ["transform.i_know_this_is_not_private=true"] if transform == "oracle" else []


def accuracy(data: tuple[str, ...], overrides: list[str], seed: int) -> float:
    """The accuracy of the last round, in percent."""
    transform = next((o[10:] for o in overrides if o.startswith("transform=")), "none")
    extra = [f"seed={seed}", *_not_private(transform)]
    config = parse(compose([*data, *FIXED, *overrides, *extra]))
    experiment = _prepared(data, transform, seed)._replace(config=config, plan=config.plan())
    last = run(experiment, begin(experiment), lambda *_: False)
    return 100 * experiment.test.evaluate(last.server.theta)[0]


def held_out(dataset: str, folder: Path) -> tuple[str, ...]:
    """A data set whose test records are a part of the training records, as overrides."""
    file = folder / f"{dataset}.npz"
    if not file.exists():
        with np.load(next(EMBEDDED.glob(f"{dataset}-*.npz"))) as arrays:
            order = np.random.default_rng(0).permutation(len(arrays["train_y"]))
            cut = int(HELD_OUT * len(order))
            parts = {"test": order[:cut], "train": order[cut:]}
            own = {
                f"{split}_{k}": arrays[f"train_{k}"][rows]
                for split, rows in parts.items()
                for k in "xy"
            }
            np.savez(file, **own, **{k: arrays[k] for k in ("probe_x", "lo", "scale")})
    return ("dataset=npz", f"dataset.path={file}")


def search(score: Callable[[Settings], float], starts: list[Settings]) -> dict[Settings, float]:
    """Hill climbing on learning rate and clip by factors of two, from the best of some points."""
    scores = {settings: score(settings) for settings in starts}
    best = max(scores, key=scores.__getitem__)
    while True:
        lr, clip = best
        near = [(lr * 2, clip), (lr / 2, clip), (lr, clip / 2), (lr, clip * 2)]
        opposed = [(lr * 2, clip / 2), (lr / 2, clip * 2)]  # a clip's scale is a step's as well
        for settings in near + opposed:
            if settings not in scores and len(scores) < BUDGET:
                scores[settings] = score(settings)
        better = max(scores, key=scores.__getitem__)
        if better == best or len(scores) >= BUDGET:
            return scores
        best = better


def overrides_of(method: str, epsilon: float, settings: Settings) -> list[str]:
    """A run's config."""
    lr, clip = settings
    return [
        *METHODS[method][0],
        f"strategy.lr={lr}",
        f"privacy.clip={clip}",
        f"privacy.epsilon={epsilon}",
    ]


def chain(job: tuple[str, str, str, str]) -> list[dict[str, Any]]:
    """One method on one data set: settings and test accuracies at every epsilon."""
    dataset, method, folder, cache = job
    file = Path(cache) / f"{dataset}-{method.replace(' ', '')}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    for epsilon in EPSILONS[len(rows) :]:
        tuning = held_out(dataset, Path(folder))

        def score(settings: Settings, e: float = epsilon, d: tuple[str, ...] = tuning) -> float:
            return accuracy(d, overrides_of(method, e, settings), TUNING_SEED)

        lr, clip = METHODS[method][1]
        # From a wide clip to one that cuts every gradient, and what was best at the last epsilon.
        starts = [(lr, clip), (lr * 4, clip / 4), (lr * 16, clip / 16)]
        starts += [(rows[-1]["lr"], rows[-1]["clip"])] if rows else []
        scores = search(score, starts)
        best = max(scores, key=scores.__getitem__)
        final = overrides_of(method, epsilon, best)
        row = {
            "dataset": dataset,
            "method": method,
            "epsilon": epsilon,
            "lr": best[0],
            "clip": best[1],
            "held_out": scores[best],
            "runs": len(scores),
            "test": [accuracy((f"dataset={dataset}",), final, seed) for seed in SEEDS],
        }
        if method == "KFC + SOFIM":
            oracle = [o.replace("transform=kfc", "transform=oracle") for o in final]
            row["oracle"] = [accuracy((f"dataset={dataset}",), oracle, s) for s in SEEDS]
        rows.append(row)
        file.write_text(json.dumps(rows, indent=1))
        print(json.dumps(row), flush=True)
    return rows


def _cell(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def _table(title: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(title) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [title, rule, *lines])


def page(rows: list[dict[str, Any]], text: str) -> str:
    """The page: its text with the tables in place."""
    of = {(r["dataset"], r["method"], r["epsilon"]): r for r in rows}
    title = ["", *(f"eps {e}" for e in EPSILONS)]
    for dataset, name in DATASETS.items():
        cells = [[m, *(_cell(of[dataset, m, e]["test"]) for e in EPSILONS)] for m in METHODS]
        gains = []
        for e in EPSILONS:
            ours, *others = (
                statistics.mean(of[dataset, m, e]["test"])
                for m in ("KFC + SOFIM", "FedGD", "SOFIM")
            )
            gains.append(f"{ours - max(others):+.1f}")
        cells.append(["*KFC + SOFIM over the best without KFC*", *gains])
        oracle = [_cell(of[dataset, "KFC + SOFIM", e]["oracle"]) for e in EPSILONS]
        cells.append(["oracle + SOFIM (not private)", *oracle])
        settings = [
            [m, *(f"{of[dataset, m, e]['lr']:g}, {of[dataset, m, e]['clip']:g}" for e in EPSILONS)]
            for m in METHODS
        ]
        text = text.replace(f"<!-- {dataset} -->", f"### {name}\n\n{_table(title, cells)}")
        text = text.replace(f"<!-- {dataset} settings -->", f"{name}:\n\n{_table(title, settings)}")
    return text


def main() -> None:
    """Compute what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--cache", type=Path, default=ROOT / "outputs" / "kfc-table")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "kfc.md")
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for dataset in DATASETS:
            held_out(dataset, Path(folder))
        jobs = [(d, m, folder, str(arguments.cache)) for m in METHODS for d in DATASETS]
        with ProcessPoolExecutor(arguments.jobs) as pool:
            rows = [row for rows in pool.map(chain, jobs) for row in rows]
    template = Path(__file__).with_suffix(".md").read_text()
    arguments.out.write_text(page(rows, template))
    print(f"Written to {arguments.out}")


if __name__ == "__main__":
    main()
