"""How the cost of a round of the local engine grows, each time with a measured exponent.

    python scripts/bench_scaling.py [--repeats 5]

One thing at a time grows from a common middle: records, features, classes, clients, heads of a
stack. CPU time of a round on one thread, release to aggregate; the least of some repeats
counts. The exponent is the slope of the last three, in logarithms: 1 is in proportion, 0 is free.

Beside it stands the floor: two bare products over all records at once, and as many normal numbers
as the clients draw, in one call of NumPy; for methods with local steps, as often as these, and
without the noise for steps that a client takes for itself alone, on parameters of its own, which
no common product can have. Clients that remember something
take eight rounds, of which the mean counts: a tree closes another level in each.
"""

import argparse
import math
import os
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np

from fedsofim.clients import Client, Program
from fedsofim.clients.alone import Alone
from fedsofim.clients.silent import Silent
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arrays import Array
from fedsofim.engines.simulation import Simulation
from fedsofim.engines.stacked import StackedPlan
from fedsofim.models import head
from fedsofim.strategies import STRATEGIES
from fedsofim.strategies.rule import broadcast, start

MIDDLE = {"records": 50_000, "features": 64, "classes": 10, "clients": 20, "heads": 1}
ROUNDS = 8
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
    print(f"exponent {slope:.2f}; peak memory so far {peak_memory():,.0f} MB")


def methods(n: int, repeats: int) -> None:
    """A table of methods with many clients."""
    print(f"\nmethods ({n:,} clients)\n| method | steps | round, ms | floor, ms | over it |")
    print("|---|---:|---:|---:|---:|")
    for name in STRATEGIES:
        ours, floor, steps = cost({**MIDDLE, "clients": n}, repeats, name)
        said = f"{steps.noisy} + {steps.plain}" if steps.plain else f"{steps.noisy}"
        over = f"{ours / floor:.2f}" if floor else ""
        print(f"| {name} | {said} | {1e3 * ours:.0f} | {1e3 * floor:.0f} | {over} |", flush=True)


class Steps(NamedTuple):
    """How many gradients a client takes in a round: with noise, and without."""

    noisy: int
    plain: int


def steps_of(client: Program) -> Steps:
    """What a client does in a round, by its kind."""
    steps = getattr(client, "steps", 1)
    if isinstance(client, Silent):
        return Steps(0, 0)
    if isinstance(client, Alone):
        return Steps(0, steps)
    return Steps(steps, getattr(client, "own_steps", 0))


def wide(n: int) -> None:
    """The memory of a model with 513,000 numbers and many clients."""
    peaks: list[float] = []
    sizes = {**MIDDLE, "features": 512, "classes": 1_000, "clients": n}
    ours, floor, _ = cost(sizes, 1, then=lambda: peaks.append(peak_memory()))
    (peak,) = peaks  # of the rounds; the floor's products of all clients take more
    print(f"512 x 1,000, {n:,} clients: {ours:.1f} s a round, {ours / floor:.2f} of the floor")
    print(
        f"peak memory {peak:,.0f} MB; all releases at once would be {n * 1000 * 513 * 4 / 1e6:,.0f}"
    )


def peak_memory() -> float:
    """The most megabytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def cost(
    sizes: dict[str, int],
    repeats: int,
    strategy: str = "fedgd",
    then: Callable[[], None] = lambda: None,
) -> tuple[float, float, Steps]:
    """Seconds of CPU time of a round, and of the floor; and how many local steps it has.

    What is to be done between the two is called `then`.
    """
    N, F, K, n, S = sizes.values()
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((N, F), dtype=np.float32), rng.integers(0, K, N)
    parts = np.array_split(np.arange(N), n)
    clients = [Client(i, head.examples(x[part], y[part], K)) for i, part in enumerate(parts)]
    config = parse(compose([f"strategy={strategy}", "partition=iid", f"partition.clients={n}"]))
    theta = rng.standard_normal((S, K, F + 1), dtype=np.float32) / np.float32(math.sqrt(F))
    plan, stacked = config.plan(), S > 1
    simulation = Simulation(
        config, clients, StackedPlan((plan,) * S) if stacked else plan, stacked=stacked
    )
    server = start(config.strategy, theta if stacked else theta[0])
    received = broadcast(config.strategy, server)
    memory = config.client.init(theta if stacked else theta[0], n)
    kept = len(config.client.init(theta[0], 1)) > 0

    def rounds() -> None:
        """One round; of clients that remember, as many as make up what they remember."""
        remembered = memory
        for t in range(ROUNDS if kept else 1):
            G, remembered = simulation.round(t, received, remembered)
            if "drift" in received:
                received["drift"] = G  # else there is no angle, and no step

    ours = least(rounds, repeats) / (ROUNDS if kept else 1)
    then()
    steps, (products, own, noise) = steps_of(config.client), floor(x, theta, n, repeats)
    return ours, steps.noisy * (products + noise) + steps.plain * own, steps


def floor(x: Array, theta: Array, n: int, repeats: int) -> tuple[float, float, float]:
    """Seconds of two bare products over all records, and of all clients' normal numbers.

    Between them those of the two products where each client has parameters of its own.
    """
    rng, (_, K, width) = np.random.default_rng(0), theta.shape
    columns, flat = np.ascontiguousarray(x.T), theta.reshape(-1, width)[:, :-1].copy()
    # All of a small model's numbers in one call; a large one's, client by client, in one place.
    whole = np.empty((min(n, max(1, 2**24 // theta[0].size)), K, width), np.float32)
    noise = [whole] if len(whole) == n else [whole[0]] * n
    records = x[: len(x) // n * n].reshape(n, -1, x.shape[1])
    each = np.ascontiguousarray(records.transpose(0, 2, 1))
    models = np.repeat(flat[None, :K], n if len(whole) == n else 1, axis=0)

    def draw() -> None:
        for part in noise:
            rng.standard_normal(out=part, dtype=np.float32)

    products = least(lambda: np.matmul(np.matmul(flat, columns), columns.T), repeats)
    own = least(lambda: np.matmul(np.matmul(models, each), records), repeats)
    return products, own, least(draw, repeats)


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
