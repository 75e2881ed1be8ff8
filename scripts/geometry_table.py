"""Measure `settings=auto` beside the best of 49 pairs of rate and clip: docs/geometry.md's table.

    python scripts/geometry_sets.py SETS
    python scripts/geometry_table.py SETS [--sets xrays ...] [--trust server aggregate] [--seeds 3]

Prints rows of the table, and those of DP-FedSOFIM: test accuracy in percent, mean over seeds.
The pair is chosen on the test set, for DP-FedGD, whose model is its last iterate or, where auto
evaluates the mean of the last ones, the better of the two. Finished runs are kept in SETS.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array
from fedsofim.studies.results import Results, curve_of

CLIPS = (0.25, 0.5, 1, 2, 4, 8, 16)
EPSILONS = (0.5, 1.0, 5.0, 10.0)
# The number of classes of each set. The norms of the features of one of them count as not known.
CLASSES = {
    "cifar10": 10,
    "pathmnist": 9,
    "xrays": 2,
    "cats-dogs": 2,
    "cats-dogs-2000": 2,
    "tissue-2": 2,
    "tissue-3": 3,
    "cifar100-20": 20,
    "cifar100-test": 100,
    "cifar100": 100,
}
EMBEDDED, UNKNOWN = ("cifar10", "pathmnist"), "cifar100-test"


class Study(NamedTuple):
    """One set, one kind of trust, some seeds."""

    folder: Path
    name: str
    trust: str
    seeds: int

    def data(self) -> list[str]:
        """The overrides that name the set."""
        if self.name in EMBEDDED:
            return [f"dataset={self.name}"]
        given = ["dataset=npz", f"dataset.path={self.folder / self.name}.npz"]
        known = [] if self.name == UNKNOWN else ["transform.statistics=resnet20-cifar100"]
        return [*given, *known]

    def ways(self, epsilon: float) -> Iterable[list[str]]:
        """What is compared at one epsilon: auto of both methods, then the search's pairs."""
        yield ["strategy=fedgd"]
        yield ["strategy=sofim"]
        averages = sorted({"none", self.parsed(epsilon, ["strategy=fedgd"], 0).average})
        for k in range(-4, 3):
            rate = f"strategy.lr={CLASSES[self.name] * 2.0**k}"
            for C in CLIPS:
                for average in averages:
                    yield ["strategy=fedgd", rate, f"privacy.clip={C}", f"average={average}"]

    def parsed(self, epsilon: float, way: list[str], seed: int) -> Config:
        """The config of one run."""
        given = [f"privacy.trust={self.trust}", f"privacy.epsilon={epsilon}", f"seed={seed}"]
        return parse(compose(["settings=auto", *self.data(), *way, *given]))

    def accuracies(self, epsilon: float) -> Array:
        """In percent, of each way, `(ways, seeds)`."""
        ways = list(self.ways(epsilon))
        configs = [self.parsed(epsilon, way, seed) for way in ways for seed in range(self.seeds)]
        kept = Results(self.folder / "results" / f"{self.name}-{self.trust}.jsonl")
        rows = kept.run(configs, lambda _, result: curve_of(result), every=20, jobs=1)
        found = [100 * row["curve"][-1]["accuracy"] for row in rows]
        return np.reshape(found, (len(ways), self.seeds))


def told(values: Iterable[float], digits: int = 1) -> str:
    """Numbers as a cell of the table."""
    return " / ".join(f"{value:.{digits}f}" for value in values)


def main() -> None:
    """Measure, and print as rows are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", choices=CLASSES, default=list(CLASSES))
    parser.add_argument("--trust", nargs="+", default=["server", "aggregate"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for name in given.sets:
        for trust in given.trust:
            study = Study(given.folder, name, trust, given.seeds)
            found = [study.accuracies(epsilon) for epsilon in given.epsilon]
            auto, sofim, best = zip(
                *((a[0].mean(), a[1].mean(), a[2:].mean(axis=1).max()) for a in found), strict=True
            )
            print(f"{name}, trust {trust}: auto {told(auto)} | best of 49 {told(best)}", end="")
            print(f" | SOFIM {told(sofim)}; gaps {told(np.subtract(best, auto), 2)}", end="")
            print(f", SOFIM's {told(np.subtract(best, sofim), 2)}", end="")
            print(f"; std over seeds {told(a[0].std() for a in found)}", flush=True)


if __name__ == "__main__":
    main()
