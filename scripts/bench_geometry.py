"""What a set-up costs in rounds, and what a round costs after it: CPU time, in one process.

    OPENBLAS_NUM_THREADS=1 python scripts/bench_geometry.py [dataset=pathmnist ...]

Runs of DP-FedGD with and without `transform=private` take turns, on the same records. CPU time is
what the process itself used, and the least of it, of each stage, the first round and the last one,
what others slowed least.
"""

import sys
import time
from itertools import pairwise
from typing import Any

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arrays import Array
from fedsofim.engines.local import run
from fedsofim.runs.experiment import Experiment, RunState, begin, prepare

REPEATS, ROUNDS = 40, 8
GIVEN = ["strategy=fedgd", "strategy.lr=1", "privacy.clip=2", "aggregation=size", "average=none"]
KINDS = {
    "plain": ["transform=none"],
    "private": ["transform=private"],
    "private, norms not known": ["transform=private", "transform.statistics=null"],
    "centre": ["transform=centre"],
}


def timed(experiment: Experiment) -> list[float]:
    """The CPU seconds of each stage, the first round, which finds norms, and the last one."""
    times = [time.process_time()]

    def on_round(now: RunState, G: Array | None, **notes: Any) -> bool:
        times.append(time.process_time())
        return False

    run(experiment, begin(experiment), on_round)
    spent = [after - before for before, after in pairwise(times)]
    stages = len(experiment.config.stages)
    return [*spent[: stages + 1], spent[-1]]


def main() -> None:
    """Measure, and print a table."""
    ready = {
        name: prepare(parse(compose([*GIVEN, *more, f"rounds={ROUNDS}", *sys.argv[1:]])))
        for name, more in KINDS.items()
    }
    shared = ready["plain"].clients
    ready = {name: each._replace(clients=shared) for name, each in ready.items()}
    found: dict[str, list[list[float]]] = {name: [] for name in ready}
    for _ in range(REPEATS):
        for name, experiment in ready.items():
            found[name].append(timed(experiment))
    plain = min(spent[-1] for spent in found["plain"])
    for name, runs in found.items():
        *stages, later = (min(values) for values in zip(*runs, strict=True))
        setup = sum(stages) - later
        print(
            f"{name}: set-up {1e3 * setup:.1f} ms of CPU, {setup / plain:.1f} rounds' worth; "
            f"a round {1e3 * later:.1f} ms, {later / plain:.2f} x"
        )


if __name__ == "__main__":
    main()
