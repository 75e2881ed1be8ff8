"""How close a round of the VGG-16 head comes to its bare matrix products.

    python scripts/bench_vgg_head.py [--repeats 9]

The head has 10 x 513 = 5,130 parameters and 50,000 records of 512 features at 20 clients. A round
of the local engine - clipped per-example gradients, noise, aggregation, the server's step - is
timed against the two products that no implementation avoids: logits, and the weighted sum of
features. Both take the same chunks; the best of the repeats counts, taken in turns.
"""

import argparse
import os
import time
from collections.abc import Callable

import numpy as np

from fedsofim.clients import Client
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.data.partition import Partition, statistics
from fedsofim.engines import local
from fedsofim.models import head
from fedsofim.runs.experiment import Experiment, begin

RECORDS, FEATURES, CLASSES, ROUNDS = 50_000, 512, 10, 3


def experiment() -> Experiment:
    """A private run of DP-FedSOFIM on random features of the shape of VGG-16's."""
    config = parse(compose([f"rounds={ROUNDS}"]))
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((RECORDS, FEATURES), dtype=np.float32), 0)
    y = rng.integers(0, CLASSES, RECORDS)
    parts = Partition(kind="dirichlet", clients=20).split(y, CLASSES, 0)
    clients = [Client(i, head.examples(x[p], y[p], CLASSES)) for i, p in enumerate(parts)]
    theta = head.init(rng, CLASSES, FEATURES)
    test = head.examples(x[:10], y[:10], CLASSES)
    return Experiment(config, config.plan(), clients, test, theta, statistics(parts, y, CLASSES))


def products(made: Experiment) -> None:
    """The two matrix products of a round, and nothing else."""
    for client in made.clients:
        for batch in client.data.chunks(head.CHUNK):
            logits = made.theta @ batch.x
            logits @ batch.x.T


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    made = experiment()
    state = begin(made)
    engine, bare = [], []
    for _ in range(repeats):
        engine.append(seconds(lambda: local.run(made, state, lambda now, G: False)) / ROUNDS)
        bare.append(seconds(lambda: products(made)))
    flops = 4 * RECORDS * (FEATURES + 1) * CLASSES
    print(
        f"d = {made.theta.size:,}; {RECORDS:,} records, 20 clients; load {os.getloadavg()[0]:.1f}"
    )
    print(f"matrix products   {1e3 * min(bare):7.1f} ms  {flops / min(bare) / 1e9:6.1f} GFLOP/s")
    print(f"local engine      {1e3 * min(engine):7.1f} ms  a round")
    print(f"ratio             {min(engine) / min(bare):7.2f}")


if __name__ == "__main__":
    main()
