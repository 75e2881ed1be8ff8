"""How much of a search's lead over `settings=auto` is luck.

    python scripts/search_luck.py 2 3 dataset=npz dataset.path=two.npz privacy.epsilon=1

The arguments are the number of classes, how many seeds, and overrides. DP-FedGD is run with
`settings=auto` and with 49 pairs of rate and clip. The pair that is best on a random half of the
test records is compared with auto on both halves, 400 times. The same is done with seeds: chosen
on a random quarter of them, scored on the others.
"""

import sys
from collections.abc import Sequence

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arrays import Array
from fedsofim.runs.experiment import prepare
from fedsofim.studies.stacks import run_all

CLIPS = (0.25, 0.5, 1, 2, 4, 8, 16)
HALVINGS = 400


def hits(classes: int, seeds: int, given: Sequence[str]) -> Array:
    """Which test records are right: `(1 + 49, seeds, N)`, auto first."""
    pairs = [(classes * 2.0**k, C) for k in range(-4, 3) for C in CLIPS]
    ways = [[], *([f"strategy.lr={lr}", f"privacy.clip={C}"] for lr, C in pairs)]
    base = ["settings=auto", "strategy=fedgd", *given]
    configs = [parse(compose([*base, *way, f"seed={s}"])) for way in ways for s in range(seeds)]
    y = prepare(configs[0]).test.labels
    right = np.empty((len(configs), len(y)), bool)
    for result in run_all(configs, every=configs[0].rounds, jobs=1):
        right[result.number] = result.predictions.ravel() == y
    return right.reshape(len(ways), seeds, len(y))


def lead(right: Array, chosen_on: Array, scored_on: Array) -> float:
    """By how many points the pair that is best on some columns is above auto on others."""
    best = 1 + right[1:, chosen_on].mean(axis=1).argmax()
    return float(100 * (right[best, scored_on] - right[0, scored_on]).mean())


def luck(right: Array, part: int) -> tuple[float, float]:
    """The mean lead where the pair was chosen, a random part of the columns, and elsewhere."""
    rng, size = np.random.default_rng(0), right.shape[1] // part
    orders = [rng.permutation(right.shape[1]) for _ in range(HALVINGS)]
    same = [lead(right, i[:size], i[:size]) for i in orders]
    other = [lead(right, i[:size], i[size:]) for i in orders]
    return float(np.mean(same)), float(np.mean(other))


def main() -> None:
    """Measure, and print."""
    right = hits(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    everything = np.arange(right.shape[2])
    records, seeds = right.mean(axis=1), right.mean(axis=2)
    print(f"auto {100 * records[0].mean():.1f} %; the best of 49 is", end=" ")
    print(f"{lead(records, everything, everything):.2f} points above it")
    parts = (("half the records", records, 2), ("a quarter of the seeds", seeds, 4))
    for name, table, part in parts:
        if table.shape[1] >= part:
            same, other = luck(table, part)
            print(f"chosen on {name}: {same:.2f} there, {other:.2f} on the others")


if __name__ == "__main__":
    main()
