"""What KFC adds to a round of the local engine, on the embedded CIFAR-10 features.

python scripts/bench_kfc.py [--rounds 60] [--refresh-every 10]

Runs with and without the transform take turns, on the same records, so that a busy machine slows
both alike. Of each round the least of ten runs counts, refreshes among them; not of the first, in
which the norms under the transform are found.
"""

import argparse
import statistics
import time
from itertools import pairwise

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.engines.local import run
from fedsofim.runs.experiment import Experiment, begin, prepare

RUNS = 10


def seconds(experiment: Experiment) -> list[float]:
    """The time that each round of a run takes, but the first."""
    marks: list[float] = []

    def mark(*_: object, **__: object) -> bool:
        marks.append(time.perf_counter())
        return False

    run(experiment, begin(experiment), mark)
    return [after - before for before, after in pairwise(marks)]


def main() -> None:
    """Print means, and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--refresh-every", type=int, default=10, help="0: never")
    options = parser.parse_args()
    every = f"transform.refresh_every={options.refresh_every}"
    plain, under = (
        prepare(parse(compose(["strategy=fedgd", f"rounds={options.rounds}", *transform])))
        for transform in (["transform=none"], ["transform=kfc", every])
    )
    under = under._replace(clients=plain.clients)
    taken = [(seconds(plain), seconds(under)) for _ in range(RUNS)]
    none, kfc = (
        statistics.mean(map(min, zip(*runs, strict=True))) for runs in zip(*taken, strict=True)
    )
    print(f"without: {1e3 * none:.2f} ms a round")
    print(f"KFC:     {1e3 * kfc:.2f} ms a round")
    print(f"ratio:   {kfc / none:.3f}")


if __name__ == "__main__":
    main()
