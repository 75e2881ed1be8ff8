"""Measure pFedSOP against FedAvg with fine-tuning and local-only training: docs/pfedsop.md.

    python scripts/pfedsop_table.py            choose settings, measure, write: half an hour
    python scripts/pfedsop_table.py --render   write the page from the numbers of the last time

Settings are chosen on a tenth of the training records, held out, with another seed; the test set
is used once, with the settings chosen.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pfedsop_page

from clients.personal import TunedSteps
from data.datasets import DatasetConfig, load
from fedsofim import personal
from fedsofim.compose import compose
from fedsofim.engines.local import run
from fedsofim.experiment import RunState, begin, parse, prepare

ROUNDS, SEEDS, TUNING_SEED = 70, (0, 1), 100
SHOWN = (1, 2, 5, 10, 20, 40, 70)
EPSILONS = (1, 5, 10)
DOCS = Path(__file__).resolve().parent.parent / "docs"
# Local steps without a budget; with one, a step uses all records and a round has one step.
PLAIN = ("privacy=none", "client.steps=10", "client.batch_size=100")
PRIVATE = ("client.steps=1", "client.tune_batch_size=100")
TUNINGS = ((0.03, 10), (0.03, 100), (0.1, 10), (0.1, 100))  # (learning rate, steps)


class Cell(NamedTuple):
    """What a number of the table is for; `epsilon` is 0 where there is no budget."""

    dataset: str
    alpha: float
    clients: int
    method: str
    epsilon: float
    tuned: bool

    @property
    def name(self) -> str:
        """The cell in one word."""
        return "/".join(map(str, self))

    def overrides(self, seed: int, file: str | None = None) -> list[str]:
        """The cell as a config; `file` replaces the data set's own."""
        named = ["dataset=npz", f"dataset.path={file}"] if file else [f"dataset={self.dataset}"]
        who = [f"partition.alpha={self.alpha}", f"partition.clients={self.clients}"]
        return [*named, *who, f"strategy={self.method}", f"seed={seed}", f"rounds={ROUNDS}"]

    @property
    def twin(self) -> "Cell":
        """The cell whose settings this one takes: without a budget, those of 20 clients."""
        return self if self.epsilon else self._replace(clients=20)


def cells() -> Iterator[Cell]:
    """The table."""
    for case in product(("cifar10", "pathmnist"), (0.1, 0.5), (20, 100)):
        yield Cell(*case, "local", 0, False)
        yield Cell(*case, "fedavg_finetune", 0, True)
        yield Cell(*case, "pfedsop", 0, False)
        for epsilon in EPSILONS:
            yield Cell(*case, "pfedsop", epsilon, False)
            yield Cell(*case, "pfedsop", epsilon, True)
            yield Cell(*case, "fedavg_finetune", epsilon, True)


def grid(method: str, epsilon: float) -> list[list[str]]:
    """The settings that are tried."""
    if not epsilon and method == "pfedsop":
        steps = product((0.03, 0.1), ((0.3, 1), (1, 1), (3, 1), (3, 10)))
        return [
            [*PLAIN, f"client.lr={lr}", f"strategy.lr={eta_1}", f"strategy.rho={rho}"]
            for lr, (eta_1, rho) in steps
        ]
    if not epsilon:
        return [[*PLAIN, f"client.lr={lr}"] for lr in (0.03, 0.1, 0.3)]
    private = [*PRIVATE, f"privacy.epsilon={epsilon}"]
    if method == "pfedsop":
        return [
            [*private, f"privacy.clip={clip}", f"client.lr={lr}", f"strategy.lr={eta_1}"]
            for clip, lr, eta_1 in ((1, 0.3, 1), (3, 0.1, 1), (3, 0.3, 1), (3, 0.3, 3))
        ]
    return [[*private, "privacy.clip=3", f"client.lr={lr}"] for lr in (0.3, 1)]


class Job(NamedTuple):
    """A run: its config, the rounds to score, and the tunings to score its end with."""

    overrides: list[str]
    scored: tuple[int, ...] = ()
    tunings: tuple[tuple[float, int], ...] = ()


def measure(job: Job) -> dict[str, Any]:
    """Train; the mean personal accuracy by round, and every client's at the end, by tuning."""
    experiment = prepare(parse(compose(job.overrides)))
    program = experiment.config.client

    def accuracies(state: RunState, tuning: tuple[float, int] | None) -> Any:
        own = program
        if tuning and isinstance(own, TunedSteps):
            own = replace(own, tune_lr=tuning[0], tune_steps=tuning[1])
        models = own.personal(state.server.theta, experiment.clients, state.clients)
        return personal.score(models, experiment.own_tests).accuracy

    curve = {}

    def on_round(state: RunState, G: Any) -> bool:
        if state.server.t in job.scored:
            curve[state.server.t] = float(accuracies(state, None).mean())
        return False

    state = run(experiment, begin(experiment), on_round)
    ends = [accuracies(state, tuning).tolist() for tuning in (None, *job.tunings)]
    return {"curve": curve, "ends": ends}


def held_out(dataset: str, directory: Path) -> str:
    """A data set whose test set is a tenth of the training records, as a file."""
    data = load(DatasetConfig(name=dataset))
    order = np.random.default_rng(TUNING_SEED).permutation(len(data.train_y))
    test, train = np.split(order, [len(order) // 10])
    file, x, y = directory / f"{dataset}.npz", data.train_x, data.train_y
    np.savez(file, train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test])
    return str(file)


def choose(pool: ProcessPoolExecutor, directory: Path) -> dict[str, Any]:
    """For each cell, the settings that do best at the last round on the records held out."""
    files = {name: held_out(name, directory) for name in ("cifar10", "pathmnist")}
    tried: dict[Cell, list[tuple[Job, list[str]]]] = defaultdict(list)
    for cell in dict.fromkeys(cell.twin._replace(tuned=False) for cell in cells()):
        tunings = TUNINGS if cell.epsilon or cell.method == "fedavg_finetune" else ()
        start = cell.overrides(TUNING_SEED, files[cell.dataset])
        for settings in grid(cell.method, cell.epsilon):
            tried[cell].append((Job([*start, *settings], (), tunings), settings))
    results = pool.map(measure, [job for group in tried.values() for job, _ in group])
    scores: dict[Cell, list[tuple[float, list[str]]]] = defaultdict(list)
    for cell, group in tried.items():
        for job, settings in group:
            plain, *tuned = (float(np.mean(end)) for end in next(results)["ends"])
            scores[cell].append((plain, settings))
            for (lr, steps), accuracy in zip(job.tunings, tuned, strict=True):
                tuning = [f"client.tune_lr={lr}", f"client.tune_steps={steps}"]
                scores[cell._replace(tuned=True)].append((accuracy, [*settings, *tuning]))
        print(cell.name, max(scores[cell]), flush=True)
    best = {}
    for cell in cells():
        accuracy, settings = max(scores[cell.twin])
        best[cell.name] = {"held_out": accuracy, "settings": settings}
    return best


def evaluate(pool: ProcessPoolExecutor, best: dict[str, Any]) -> dict[str, Any]:
    """Each cell on the test set: curves and clients' accuracies, over seeds."""
    jobs = []
    for cell, seed in product(cells(), SEEDS):
        scored = SHOWN if cell.tuned else tuple(range(1, ROUNDS + 1))
        jobs.append(Job([*cell.overrides(seed), *best[cell.name]["settings"]], scored))
    results = pool.map(measure, jobs)
    table = {}
    for cell in cells():
        runs = [next(results) for _ in SEEDS]
        curve = {t: float(np.mean([r["curve"][t] for r in runs])) for t in runs[0]["curve"]}
        clients = [accuracy for r in runs for accuracy in r["ends"][0]]
        table[cell.name] = {**cell._asdict(), **best[cell.name], "curve": curve, "clients": clients}
        print(cell.name, {t: round(100 * curve[t], 2) for t in SHOWN}, flush=True)
    return table


def main() -> None:
    """Measure, unless the numbers are there and only the page is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--render", action="store_true", help="only write the page again")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    numbers = DOCS / "pfedsop.json"
    if not arguments.render:
        with ProcessPoolExecutor(arguments.jobs) as pool, tempfile.TemporaryDirectory() as place:
            table = evaluate(pool, choose(pool, Path(place)))
        DOCS.mkdir(exist_ok=True)
        numbers.write_text(json.dumps(table, separators=(",", ":")) + "\n")
    pfedsop_page.write(DOCS, json.loads(numbers.read_text()), SHOWN, EPSILONS)


if __name__ == "__main__":
    main()
