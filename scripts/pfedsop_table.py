"""Measure pFedSOP against FedAvg with fine-tuning and local-only training: docs/pfedsop.md.

    python scripts/pfedsop_table.py            choose settings, measure, write: ten minutes
    python scripts/pfedsop_table.py --render   write the page from the numbers of the last time

Settings are chosen on a tenth of the training records, held out, with another seed; the test set is
scored with the settings chosen. What was computed stays in --cache: what was interrupted goes on.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pfedsop_networks_page
import pfedsop_page

from fedsofim.clients import Program
from fedsofim.clients.personal import TunedSteps
from fedsofim.config.compose import compose_many
from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array
from fedsofim.engines import stacked
from fedsofim.runs import personal_tests as personal
from fedsofim.runs.experiment import prepare
from fedsofim.strategies.rule import ServerState
from fedsofim.studies.processes import each
from fedsofim.studies.results import Results

ROUNDS, SEEDS, TUNING_SEED = 70, (0, 1), 100
SHOWN = (1, 2, 5, 10, 20, 40, 70)
EPSILONS = (1, 5, 10)
DOCS = Path(__file__).resolve().parent.parent / "docs"
# Local steps without a budget; with one, a step uses all records and a round has one step.
PLAIN = ("privacy=none", "client.steps=10", "client.batch_size=100")
PRIVATE = ("client.steps=1", "client.tune_batch_size=100")
TUNING_RATES = (0.03, 0.1)


class Cell(NamedTuple):
    """What a number of the table is for.

    Attributes:
        dataset: its name.
        alpha: of the Dirichlet draw.
        clients: how many.
        method: the strategy.
        epsilon: the budget; 0 where there is none.
        tuned: how many steps each client tunes its model before it is scored.
    """

    dataset: str
    alpha: float
    clients: int
    method: str
    epsilon: float
    tuned: int

    @property
    def name(self) -> str:
        """The cell in one word."""
        return "/".join(map(str, self))

    def overrides(self) -> list[str]:
        """The cell as a config, without its settings."""
        who = [f"partition.alpha={self.alpha}", f"partition.clients={self.clients}"]
        return [f"dataset={self.dataset}", *who, f"strategy={self.method}", f"rounds={ROUNDS}"]

    @property
    def scored(self) -> tuple[int, ...]:
        """The rounds that the page needs; scoring a tuned model takes as long as a few rounds."""
        if self.epsilon:
            return (ROUNDS,)
        return SHOWN if self.tuned else tuple(range(1, ROUNDS + 1))

    @property
    def twin(self) -> "Cell":
        """The cell whose settings this one takes, at Dirichlet 0.1; noise depends on clients."""
        return self._replace(alpha=0.1, clients=self.clients if self.epsilon else 20)


def cells() -> Iterator[Cell]:
    """The table."""
    for case in product(("cifar10", "pathmnist"), (0.1, 0.5), (20, 100)):
        yield Cell(*case, "alone", 0, 0)
        yield Cell(*case, "fedavg_finetune", 0, 10)
        yield Cell(*case, "fedavg_finetune", 0, 100)
        yield Cell(*case, "pfedsop", 0, 0)
        for epsilon in EPSILONS:
            yield Cell(*case, "pfedsop", epsilon, 0)
            yield Cell(*case, "pfedsop", epsilon, 100)
            yield Cell(*case, "fedavg_finetune", epsilon, 100)


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
    return [[*private, "privacy.clip=3", "client.lr=1", f"strategy.lr={lr}"] for lr in (0.3, 1)]


class Job(NamedTuple):
    """A run: its config, the rounds to score, and the tunings to score its end with."""

    config: Config
    scored: tuple[int, ...] = ()
    tunings: tuple[tuple[float, int], ...] = ()

    @property
    def key(self) -> Hashable:
        """Jobs with equal keys can be run in one stack."""
        return stacked.stack_key(self.config), self.scored, self.tunings


def measure(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Train a stack: mean personal accuracy by round, every client's at the end by tuning."""
    base, program = prepare(jobs[0].config), jobs[0].config.client
    experiments = [base._replace(config=job.config, plan=job.config.plan()) for job in jobs]
    curves: list[dict[str, float]] = [{} for _ in jobs]
    ends: list[list[list[float]]] = [[] for _ in jobs]

    def accuracies(own: Program, servers: list[ServerState], memory: Any) -> Iterator[Any]:
        models = own.personal(np.stack([s.theta for s in servers]), base.clients, memory)
        for s in range(len(jobs)):
            yield personal.score(models[:, s], base.own_tests).accuracy

    def on_round(servers: list[ServerState], memory: Any, _: Array) -> None:
        t = servers[0].t
        if t in jobs[0].scored:
            for curve, accuracy in zip(curves, accuracies(program, servers, memory), strict=True):
                curve[str(t)] = float(accuracy.mean())
        if t == ROUNDS:
            tuned = [
                replace(program, tune_lr=lr, tune_steps=steps)
                for lr, steps in jobs[0].tunings
                if isinstance(program, TunedSteps)
            ]
            for own in (program, *tuned):
                for end, accuracy in zip(ends, accuracies(own, servers, memory), strict=True):
                    end.append(accuracy.tolist())

    stacked.run(experiments, on_round)
    return [{"curve": c, "ends": e} for c, e in zip(curves, ends, strict=True)]


def measure_all(results: Results, jobs: Sequence[Job], processes: int) -> list[dict[str, Any]]:
    """Every job's result, in their order; those that are known are not measured again."""

    def work(todo: list[int]) -> Generator[tuple[int, dict[str, Any]]]:
        stacks: dict[Hashable, list[int]] = defaultdict(list)
        for i in todo:
            stacks[jobs[i].key].append(i)
        tasks = [[numbers, [jobs[i] for i in numbers]] for numbers in stacks.values()]
        with closing(each(measure_numbered, tasks, processes)) as found:
            for numbered in found:
                yield from numbered

    def show(done: int, total: int) -> None:
        print(f"{done} of {total} runs", end="\r", file=sys.stderr, flush=True)

    texts = [f"{job.config.text} {job.scored} {job.tunings}" for job in jobs]
    return results.complete(texts, work, show)


def measure_numbered(numbers: Sequence[int], jobs: Sequence[Job]) -> list[tuple[int, Any]]:
    """A stack's results, each with its job's number."""
    return list(zip(numbers, measure(jobs), strict=True))


def configs(overrides: Iterable[list[str]]) -> list[Config]:
    """Checked configs."""
    return [parse(values) for values in compose_many(list(overrides))]


def choose(results: Results, processes: int) -> dict[str, Any]:
    """For each cell, the settings that do best at the last round on the records held out."""
    tried = [
        (cell, settings)
        for cell in dict.fromkeys(cell.twin._replace(tuned=0) for cell in cells())
        for settings in grid(cell.method, cell.epsilon)
    ]
    steps = defaultdict(set)
    for cell in cells():
        if cell.tuned:
            steps[cell.twin._replace(tuned=0)].add(cell.tuned)
    held_out = [f"seed={TUNING_SEED}", "dataset.holdout=0.1"]
    runs = configs([*cell.overrides(), *held_out, *settings] for cell, settings in tried)
    jobs = [
        Job(config, (), tuple(product(TUNING_RATES, sorted(steps[cell]))))
        for config, (cell, _) in zip(runs, tried, strict=True)
    ]
    scores: dict[Cell, list[tuple[float, list[str]]]] = defaultdict(list)
    for (cell, settings), job, result in zip(
        tried, jobs, measure_all(results, jobs, processes), strict=True
    ):
        plain, *tuned = (float(np.mean(end)) for end in result["ends"])
        scores[cell].append((plain, settings))
        for (lr, k), accuracy in zip(job.tunings, tuned, strict=True):
            tuning = [f"client.tune_lr={lr}", f"client.tune_steps={k}"]
            scores[cell._replace(tuned=k)].append((accuracy, [*settings, *tuning]))
    best = {cell: max(scores[cell.twin]) for cell in cells()}
    return {cell.name: {"held_out": a, "settings": s} for cell, (a, s) in best.items()}


def evaluate(results: Results, best: dict[str, Any], processes: int) -> dict[str, Any]:
    """Each cell on the test set: curves and clients' accuracies, over seeds."""
    tried = list(product(cells(), SEEDS))
    runs = configs(
        [*cell.overrides(), f"seed={seed}", *best[cell.name]["settings"]] for cell, seed in tried
    )
    jobs = [Job(config, cell.scored) for config, (cell, _) in zip(runs, tried, strict=True)]
    measured = iter(measure_all(results, jobs, processes))
    table = {}
    for cell in cells():
        found = [next(measured) for _ in SEEDS]
        curve = {
            t: round(float(np.mean([r["curve"][t] for r in found])), 5) for t in found[0]["curve"]
        }
        by_client = [round(accuracy, 4) for r in found for accuracy in r["ends"][0]]
        table[cell.name] = {
            **cell._asdict(),
            **best[cell.name],
            "curve": curve,
            "by_client": by_client,
        }
    return table


def main() -> None:
    """Measure, unless the numbers are there and only the page is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--render", action="store_true", help="only write the page again")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--cache", type=Path, default=DOCS.parent / "outputs" / "pfedsop.jsonl")
    arguments = parser.parse_args()
    numbers = DOCS / "pfedsop.json"
    if not arguments.render:
        results = Results(arguments.cache)
        best = choose(results, arguments.jobs)
        table = evaluate(results, best, arguments.jobs)
        numbers.write_text(json.dumps(table, separators=(",", ":")) + "\n")
    render()


def render() -> None:
    """Write the page from the numbers of the last time, these and those of the networks."""
    numbers = json.loads((DOCS / "pfedsop.json").read_text())
    networks = pfedsop_networks_page.values(DOCS)
    pfedsop_page.write(DOCS, numbers, SHOWN, EPSILONS, networks)


if __name__ == "__main__":
    main()
