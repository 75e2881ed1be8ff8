"""Measure pFedSOP and its references with a CNN on CIFAR-10's pixels: a part of docs/pfedsop.md.

    python scripts/pfedsop_networks.py cifar10.npz    measure, write the page
    python scripts/pfedsop_networks.py --render       write it from the numbers of the last time

The file holds images under MedMNIST's names (scripts/pack_images.py writes such files). Every
method has the settings that it comes with; nothing is chosen here. What was computed stays in
--cache: what was interrupted goes on, and every run is one line there. A run takes one thread.
"""

import argparse
import json
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pfedsop_table

from fedsofim.clients.personal import TunedSteps
from fedsofim.config.compose import compose_many
from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array
from fedsofim.engines import local
from fedsofim.runs.evaluation import personal_scores
from fedsofim.runs.experiment import Experiment, RunState, begin, prepare
from fedsofim.studies.results import Results

ROUNDS, SEEDS = 20, (0, 1, 2)
SHOWN = (1, 2, 5, 10, 15, 20)
TRAIN, TEST, CLIENTS = 10_000, 2_000, 10
SPLITS = {
    "2 of 10 classes": ("partition=classes", "partition.classes_per_client=2"),
    "Dirichlet 0.1": ("partition=dirichlet", "partition.alpha=0.1"),
    "Dirichlet 0.5": ("partition=dirichlet", "partition.alpha=0.5"),
}
MODEL = ("model=cnn", "model.width=8", "model.blocks=3", "model.activation=relu")
BATCHES = {"ditto": ("client.batch_size=32", "client.own_batch_size=32")}
TUNED = (0, 10)  # FedAvg's model is scored as it is, and after as many steps as a round has
METHODS = ("alone", "fedavg_finetune", "pfedsop", "ditto")
NUMBERS = "pfedsop_networks.json"


class Job(NamedTuple):
    """A run."""

    split: str
    method: str
    seed: int

    def overrides(self, images: Path) -> list[str]:
        """The config."""
        data = ["dataset=npz", f"dataset.path={images}"]
        who = [*SPLITS[self.split], f"partition.clients={CLIENTS}", f"seed={self.seed}"]
        how = [f"strategy={self.method}", f"rounds={ROUNDS}", "privacy=none", "client.steps=10"]
        batches = BATCHES.get(self.method, ("client.batch_size=32",))
        return [*data, *who, *MODEL, *how, *batches]


def measure(config: Config) -> dict[str, Any]:
    """Train one run: every client's accuracy at some rounds, once for each tuning."""
    began, e = time.process_time(), prepare(config)
    curves: dict[str, dict[str, list[float]]] = {}

    def on_round(now: RunState, G: Array | None, **notes: Any) -> bool:
        if now.server.t in SHOWN:
            for name, variant in variants(e):
                accuracy = personal_scores(variant, now).accuracy
                curves.setdefault(name, {})[str(now.server.t)] = accuracy.round(4).tolist()
        return False

    local.run(e, begin(e), on_round)
    seconds = round(time.process_time() - began, 1)
    return {"curves": curves, "cpu_seconds": seconds, "parameters": e.theta.size}


def variants(e: Experiment) -> Iterator[tuple[str, Experiment]]:
    """The run as it is scored: FedAvg's model with and without tuning, all others as they are."""
    client = e.config.client
    if e.config.strategy_name != "fedavg_finetune" or not isinstance(client, TunedSteps):
        yield e.config.strategy_name, e
        return
    for steps in TUNED:
        tuned = replace(
            client, tune_lr=client.lr, tune_steps=steps, tune_batch_size=client.batch_size
        )
        yield f"fedavg+{steps}", e._replace(config=replace(e.config, client=tuned))


def measure_all(results: Results, jobs: Sequence[Job], images: Path) -> list[dict[str, Any]]:
    """Every job's result, in their order; those that are known are not measured again."""
    configs = [parse(values) for values in compose_many([job.overrides(images) for job in jobs])]

    def work(todo: list[int]) -> Generator[tuple[int, dict[str, Any]]]:
        for i in todo:
            yield i, measure(configs[i])

    def show(done: int, total: int) -> None:
        print(f"{done} of {total} runs", file=sys.stderr, flush=True)

    # Where the images are does not make it another run.
    texts = [" ".join(job.overrides(Path(images.name))) for job in jobs]
    return results.complete(texts, work, show)


def evaluate(results: Results, images: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Every method on every split, the first seed of all first."""
    jobs = [Job(split, method, seed) for seed, split, method in product(seeds, SPLITS, METHODS)]
    measured = measure_all(results, jobs, images)
    return [
        {"split": job.split, "method": job.method, "seed": job.seed, **found}
        for job, found in zip(jobs, measured, strict=True)
    ]


def part_of(images: Path, cache: Path) -> Path:
    """The first images of a file, at half their size, in a file of their own.

    CIFAR-10's are in no order. Half the size is a fourth of the work.
    """
    out = cache.with_name(f"{images.stem}-{TRAIN}-{TEST}-half.npz")
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        counts = {"train": TRAIN, "test": TEST}
        with np.load(images) as file:
            part = {}
            for split, count in counts.items():
                part[f"{split}_images"] = halved(file[f"{split}_images"][:count])
                part[f"{split}_labels"] = file[f"{split}_labels"][:count]
        np.savez(out, **part)
    return out


def halved(images: Array) -> Array:
    """Every four neighbours of `(N, H, W, 3)` images as their mean."""
    n, h, w, colours = images.shape
    fours = images.reshape(n, h // 2, 2, w // 2, 2, colours)
    return np.rint(fours.mean(axis=(2, 4))).astype(np.uint8)


def main() -> None:
    """Measure, unless the numbers are there and only the page is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path, nargs="?", help="CIFAR-10, with MedMNIST's names")
    parser.add_argument("--render", action="store_true", help="only write the page again")
    docs = pfedsop_table.DOCS
    parser.add_argument("--seeds", type=int, choices=(1, 2, 3), default=3, help="how many")
    default = docs.parent / "outputs" / "pfedsop_networks.jsonl"
    parser.add_argument("--cache", type=Path, default=default)
    arguments = parser.parse_args()
    if not arguments.render:
        if arguments.images is None:
            parser.error("give a file of images, or --render")
        results = Results(arguments.cache)
        images = part_of(arguments.images, arguments.cache)
        runs = evaluate(results, images, SEEDS[: arguments.seeds])
        (docs / NUMBERS).write_text(json.dumps(runs, separators=(",", ":")) + "\n")
    pfedsop_table.render()


if __name__ == "__main__":
    main()
