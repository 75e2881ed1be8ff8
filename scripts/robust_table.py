"""Accuracy with one malicious client in ten, for every way to combine releases.

    python scripts/robust_table.py [--strategy sofim] [--seeds 3] [--rounds 70]

The embedded CIFAR-10 features, 20 clients, of whom two are malicious from the first round to the
last. Prints a Markdown table of test accuracy in percent, the mean over seeds.
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np

from fedsofim.clients.group import transformed
from fedsofim.config.compose import compose
from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array, put, take
from fedsofim.core.rng import Purpose, stream
from fedsofim.runs.experiment import Experiment, begin, prepare
from fedsofim.strategies.aggregation import aggregate
from fedsofim.strategies.rule import broadcast, step

LIARS = 2
Attack = Callable[[Array, np.random.Generator], Array]


def rms(releases: Array) -> float:
    """The usual size of a number in these releases."""
    return float(np.sqrt(np.mean(releases.astype(np.float64) ** 2)))


# What the liars send instead of the first releases, knowing all of the honest ones.
ATTACKS: dict[str, Attack] = {
    "none": lambda releases, rng: releases[:LIARS],
    "sign flipped, x 10": lambda releases, rng: -10 * releases[:LIARS],
    "noise, x 100": lambda releases, rng: (
        100 * rms(releases) * rng.normal(size=releases[:LIARS].shape)
    ),
    "constant, x 100": lambda releases, rng: np.full(
        releases[:LIARS].shape, 100 * rms(releases), np.float32
    ),
    # Baruch et al. 2019, https://arxiv.org/abs/1902.06156: stay within the honest spread.
    "hidden in the spread": lambda releases, rng: np.broadcast_to(
        releases[LIARS:].mean(axis=0) - 1.5 * releases[LIARS:].std(axis=0),
        releases[:LIARS].shape,
    ),
}
RULES = ["uniform", "size", "median", "trimmed", "krum"]


def accuracy(config: Config, experiment: Experiment, attack: Attack) -> float:
    """The test accuracy after the last round, in percent."""
    server, memory = begin(experiment)
    clients = experiment.clients
    sizes = np.array([client.data.size for client in clients])
    rng = np.random.default_rng(config.seed)
    how, fraction = config.aggregation, config.malicious_fraction
    for t in range(config.rounds):
        noise, present = partial(stream, config.seed, Purpose.NOISE, t), config.schedule.present(t)
        received = broadcast(config.strategy, server)
        group = [transformed(clients, received)[i] for i in present]
        releases, new = config.client.release(
            received, group, take(memory, present), experiment.plan, noise
        )
        memory = put(memory, present, new)
        sent = releases.copy()
        sent[:LIARS] = attack(releases, rng)
        G = aggregate(sent, sizes[present], how, fraction)
        server = step(config.strategy, server, G, config.rounds)
    return 100 * experiment.test.evaluate(server.theta)[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", default="sofim")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=70)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    chosen = parser.parse_args()
    head = ["epsilon", "aggregation", *ATTACKS]
    print("| " + " | ".join(head) + " |", "|---" * len(head) + "|", sep="\n")
    for epsilon in chosen.epsilon:
        made = []
        for seed in range(chosen.seeds):
            fixed = [f"strategy={chosen.strategy}", f"rounds={chosen.rounds}", f"seed={seed}"]
            values = compose([*fixed, f"privacy.epsilon={epsilon}"])
            made.append((values, prepare(parse(values))))
        for rule in RULES:
            cells = []
            for attack in ATTACKS.values():
                scores = [
                    accuracy(parse({**values, "aggregation": rule}), experiment, attack)
                    for values, experiment in made
                ]
                cells.append(f"{np.mean(scores):.1f}")
            print(f"| {epsilon:g} | {rule} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
