"""Measure what every method sends, keeps and is charged for, on the embedded CIFAR-10 features.

    python scripts/method_costs.py

One real round of each method with its own settings at epsilon 10: the bytes of the arrays that go
down to a client, come up from it, and are kept by client and server between rounds.
"""

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arrays import flatten
from fedsofim.engines.local import run
from fedsofim.privacy.accounting import GaussianEvent
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies import STRATEGIES


def main() -> None:
    """Print the table."""
    print("| method | down | up | once, up | client keeps | server keeps | charged (T = 70) |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for name in STRATEGIES:
        experiment = prepare(parse(compose([f"strategy={name}"])))
        config, n = experiment.config, len(experiment.clients)
        sizes: dict[str, int] = {}
        program, release = config.client, config.client.release

        def spy(received, *rest, release=release, sizes=sizes, n=n):
            out, memory = release(received, *rest)
            sizes["down"] = sum(a.nbytes for a in received.values())
            sizes["up"] = out.nbytes // n
            return out, memory

        object.__setattr__(program, "release", spy)
        state = run(experiment, begin(experiment), lambda now, *_: now.server.t > 0)
        K, width = experiment.theta.shape
        lengths = [stage.length(width - 1, K) for stage in config.stages]
        client = sum(np.asarray(a).nbytes for a in flatten(state.clients).values()) // n
        server = sum(np.asarray(a).nbytes for a in flatten(state.server).values())
        events = " + ".join(describe(event) for event in experiment.plan.events())
        up_once = 4 * sum(lengths)
        print(
            f"| {name} | {sizes['down']:,} | {sizes['up']:,} | {up_once:,} | {client:,} | "
            f"{server:,} | {events} |"
        )


def describe(event: GaussianEvent) -> str:
    """`count x (sensitivity / std)`."""
    return f"{event.count:g} x ({event.sensitivity:.4g} / {event.std:.4g})"


if __name__ == "__main__":
    main()
