"""How the cost of a round of the local engine grows, each time with a measured exponent.

    python scripts/bench_scaling.py [--repeats 5]

One thing at a time grows from a common middle: records, features, classes, clients, heads of a
stack. CPU time of a round on one thread, release to aggregate; the least of some repeats
counts. The exponent is the slope of the last three, in logarithms: 1 is in proportion, 0 is free.

Beside it stands the floor: two bare products over all records at once, and as many normal numbers
as the clients draw, in one call; for methods with local steps, as often as these.
"""

import argparse
import math
import os
import resource
import time
from collections.abc import Callable

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np

from fedsofim.clients import Client
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.engines.simulation import Simulation
from fedsofim.engines.stacked import StackedPlan
from fedsofim.models import head
from fedsofim.strategies.rule import broadcast, start

MIDDLE = {"records": 50_000, "features": 64, "classes": 10, "clients": 20, "heads": 1}
GROWS = {
    "records": [12_500, 25_000, 50_000, 100_000, 200_000],
    "features": [32, 64, 128, 256, 512],
    "classes": [10, 20, 40, 80],
    "clients": [20, 100, 1_000, 5_000, 10_000],
    "heads": [4, 8, 16, 32, 64],
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=[*GROWS, "methods", "wide"], help="one table alone")
    options = parser.parse_args()
    for what, values in GROWS.items():
        if options.only in (None, what):
            table(what, values, options.repeats)
    if options.only in (None, "methods"):
        methods(10_000, options.repeats)
    if options.only == "wide":  # a process of its own, or its memory is that of what came before
        wide(1_000)


def table(what: str, values: list[int], repeats: int) -> None:
    """One table: what grows, and what it costs."""
    rest = ", ".join(f"{value:,} {name}" for name, value in MIDDLE.items() if name != what)
    print(f"\n{what} ({rest})\n| {what} | round, ms | floor, ms | over it |\n|---:|---:|---:|---:|")
    times = []
    for value in values:
        ours, floor, _ = cost({**MIDDLE, what: value}, repeats)
        times.append(ours)
        print(
            f"| {value:,} | {1e3 * ours:.1f} | {1e3 * floor:.1f} | {ours / floor:.2f} |", flush=True
        )
    slope = math.log(times[-1] / times[-3]) / math.log(values[-1] / values[-3])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"exponent {slope:.2f}; peak memory so far {peak:,.0f} MB")


def methods(n: int, repeats: int) -> None:
    """A table of methods with many clients."""
    print(f"\nmethods ({n:,} clients)\n| method | steps | round, ms | floor, ms | over it |")
    print("|---|---:|---:|---:|---:|")
    for name in ("sofim", "fedavg", "scaffold", "pfedsop", "ftrl"):
        ours, floor, steps = cost({**MIDDLE, "clients": n}, repeats, name)
        print(f"| {name} | {steps} | {1e3 * ours:.0f} | {1e3 * floor:.0f} | {ours / floor:.2f} |")


def wide(n: int) -> None:
    """The memory of a model with 513,000 numbers and many clients."""
    ours, floor, _ = cost({**MIDDLE, "features": 512, "classes": 1_000, "clients": n}, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"512 x 1,000, {n:,} clients: {ours:.1f} s a round, {ours / floor:.2f} of the floor")
    print(
        f"peak memory {peak:,.0f} MB; all releases at once would be {n * 1000 * 513 * 4 / 1e6:,.0f}"
    )


def cost(sizes: dict[str, int], repeats: int, strategy: str = "fedgd") -> tuple[float, float, int]:
    """Seconds of CPU time of a round, and of the floor; and how many local steps it has."""
    N, F, K, n, S = sizes.values()
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((N, F), dtype=np.float32), rng.integers(0, K, N)
    parts = np.array_split(np.arange(N), n)
    clients = [Client(i, head.examples(x[part], y[part], K)) for i, part in enumerate(parts)]
    config = parse(compose([f"strategy={strategy}", "partition=iid", f"partition.clients={n}"]))
    theta = rng.standard_normal((S, K, F + 1), dtype=np.float32) / np.float32(math.sqrt(F))
    plan = config.plan()
    stacked = S > 1
    simulation = Simulation(
        config, clients, StackedPlan((plan,) * S) if stacked else plan, stacked=stacked
    )
    received = broadcast(config.strategy, start(config.strategy, theta if stacked else theta[0]))
    memory = config.client.init(theta[0], n)
    steps = getattr(config.client, "steps", 1)
    columns, flat = np.ascontiguousarray(x.T), theta.reshape(-1, F + 1)[:, :-1].copy()
    # All of a small model's numbers in one call; a large one's, client by client, in one place.
    whole = np.empty((min(n, max(1, 2**24 // theta[0].size)), K, F + 1), np.float32)
    noise = [whole] if len(whole) == n else [whole[0]] * n

    def floor() -> None:
        np.matmul(np.matmul(flat, columns), columns.T)
        for part in noise:
            rng.standard_normal(out=part, dtype=np.float32)

    ours = least(lambda: simulation.round(0, received, memory), repeats)
    return ours, steps * least(floor, repeats), steps


def least(call: Callable[[], object], repeats: int) -> float:
    """The least CPU time of a call, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times)


if __name__ == "__main__":
    main()
