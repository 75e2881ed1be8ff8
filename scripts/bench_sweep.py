"""Measure configurations x rounds per second, one by one and stacked, beside the bare products.

    python scripts/bench_sweep.py

SOFIM on the embedded CIFAR-10 features with a grid of learning rates. A stack of S heads needs two
matrix products a round, `(S K, F+1) x (F+1, N)` and `(S K, N) x (N, F+1)`: they are timed alone, on
the same data, as two whole products a client and in chunks. Everything runs in one process with one
thread, as the workers of a sweep do; measurements alternate, and the best of each counts.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from fedsofim.config.compose import compose, compose_many
from fedsofim.config.schema import parse
from fedsofim.engines import local, stacked
from fedsofim.runs.experiment import begin, prepare
from fedsofim.studies.processes import each


def main() -> None:
    """Measure in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in one measurement")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--stacks", type=int, nargs="+", default=[16, 64])
    options = parser.parse_args()
    list(each(measure, [[options]], jobs=1))


def measure(options: argparse.Namespace) -> None:
    """Time everything, and print the table."""
    fixed = [f"dataset={options.dataset}", f"rounds={options.rounds}"]
    base = prepare(parse(compose(fixed)))

    def one_by_one() -> None:
        local.run(base, begin(base), lambda *_, **__: False)

    alone = best(one_by_one, options.repeats) / options.rounds
    records = sum(c.data.size for c in base.clients)
    print(f"{options.dataset}: {records:,} records, {base.theta.shape}, one thread")
    print(f"one by one: {1 / alone:,.0f} configurations x rounds a second")
    header = ("S", "per second", "speed-up", "engine ms", "whole ms", "ratio", "chunks ms", "ratio")
    print("".join(f"{name:>12}" for name in header))
    for S in options.stacks:
        rates = np.geomspace(0.05, 5, S)
        grid = [[*fixed, f"strategy.lr={rate}"] for rate in rates]
        experiments = [
            base._replace(config=config, plan=config.plan())
            for config in map(parse, compose_many(grid))
        ]
        theta = np.stack([e.theta for e in experiments])
        times = alternate(
            options.repeats,
            lambda e=experiments: stacked.run(e, lambda *_: None),
            lambda t=theta: whole(base, t),
            lambda t=theta: chunked(base, t),
        )
        engine = times[0] / options.rounds
        cells = [f"{S}", f"{S / engine:,.0f}", f"{S * alone / engine:.2f}", f"{1e3 * engine:.1f}"]
        for bare in times[1:]:
            cells += [f"{1e3 * bare:.1f}", f"{engine / bare:.2f}"]
        print("".join(f"{cell:>12}" for cell in cells))


def whole(base, theta) -> None:
    """Two products a client, each over all its records."""
    flat = theta.reshape(-1, theta.shape[-1])
    for client in base.clients:
        (flat @ client.data.x) @ client.data.x.T


def chunked(base, theta) -> None:
    """The same in chunks that stay in the cache."""
    flat = theta.reshape(-1, theta.shape[-1])
    for client in base.clients:
        for batch in client.data.chunks(512):
            (flat @ batch.x) @ batch.x.T


def best(call: Callable[[], object], repeats: int) -> float:
    """The shortest time of a call, in seconds."""
    return alternate(repeats, call)[0]


def alternate(repeats: int, *calls: Callable[[], object]) -> list[float]:
    """The shortest time of each call, measured in turns so that all see the same machine."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats + 1):  # the first is to warm up
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return [min(taken[1:]) for taken in times]


if __name__ == "__main__":
    main()
