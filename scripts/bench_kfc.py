"""What KFC adds to a round of the local engine, on the embedded CIFAR-10 features.

python scripts/bench_kfc.py [--rounds 60]

Rounds with and without the transform take turns, so that a busy machine slows both alike. A round
includes its share of the refreshes.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

from fedsofim.clients.program import transformed
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.engines.local import run
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies.rule import broadcast


def seconds(transform: str, rounds: int) -> Iterator[float]:
    """The time that each round takes; the next one begins when the value is asked for."""
    experiment = prepare(
        parse(compose(["strategy=fedgd", f"transform={transform}", f"rounds={rounds}"]))
    )
    state = begin(experiment)
    received = broadcast(experiment.config.strategy, state.server)
    # Once a run, not once a round: what the factor on the features' side costs.
    experiment = experiment._replace(clients=transformed(experiment.clients, received))
    while state.server.t < rounds:
        began = time.perf_counter()
        state = run(experiment, state, lambda *_: True)  # one round, then stop
        yield time.perf_counter() - began


def main() -> None:
    """Print medians, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    pairs = list(zip(seconds("none", rounds), seconds("kfc", rounds), strict=True))[1:]
    none, kfc = (statistics.median(column) for column in zip(*pairs, strict=True))
    due = statistics.mean(b - kfc for _, b in pairs[9::10])
    print(f"without: {1e3 * none:.2f} ms a round")
    print(f"KFC:     {1e3 * kfc:.2f} ms a round, and {1e3 * max(due, 0):.2f} ms more every 10th")
    print(f"ratio:   {(kfc + max(due, 0) / 10) / none:.3f}")


if __name__ == "__main__":
    main()
