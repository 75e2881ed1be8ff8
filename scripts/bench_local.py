"""How fast a round of the local engine is, beside the bare matrix products and beside Opacus.

Prints milliseconds a round (release, aggregate and step, without evaluation) of

- the two bare matrix products that a round cannot do without, on the same records;
- the local engine;
- the same round with Opacus: per-sample gradients of every client, clipped, summed and noised.

The three take turns of ten rounds, so that whatever else the machine does falls on all of them
alike. Before each turn there is a pause, and its first round does not count: threads that BLAS and
torch keep waiting in a loop would take a core from whoever comes next.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from fedsofim.clients import Client
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arrays import Array
from fedsofim.engines import ENGINES
from fedsofim.models import head
from fedsofim.runs.experiment import Experiment, begin, prepare
from fedsofim.strategies.aggregation import aggregate
from fedsofim.strategies.rule import ServerState, step

TURN = 10


def main() -> None:
    """Measure and print."""
    options = arguments()
    experiment = prepare(
        parse(
            compose(
                [
                    f"dataset={options.dataset}",
                    f"partition.clients={options.clients}",
                    f"strategy={options.strategy}",
                ]
            )
        )
    )
    rounds = {"bare products": one_by_one(bare(experiment)), "fedsofim": engine(experiment)}
    if not options.no_opacus:
        rounds["opacus"] = one_by_one(opacus(experiment))
    times: dict[str, list[float]] = {name: [] for name in rounds}
    for turn in range(max(1, options.repeats // TURN)):
        for name, turn_of in rounds.items():
            if name == "opacus" and turn > max(1, options.repeats // TURN // 10):
                continue
            time.sleep(0.1)
            times[name] += turn_of()
    show(experiment, times)


def one_by_one(one_round: Callable[[], None]) -> Callable[[], list[float]]:
    """A turn of calls, in milliseconds each; the first does not count."""

    def turn() -> list[float]:
        marks = [time.perf_counter()]
        for _ in range(TURN + 1):
            one_round()
            marks.append(time.perf_counter())
        return between(marks)

    return turn


def between(marks: list[float]) -> list[float]:
    """Milliseconds between marks, the first two apart."""
    return [1e3 * (after - before) for before, after in pairwise(marks[1:])]


def arguments() -> argparse.Namespace:
    """What to measure."""
    first, *rest = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(
        description=first,
        epilog="\n".join(rest),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", default="cifar10", help="an embedded set (default: cifar10)")
    parser.add_argument("--clients", type=int, default=20, help="how many clients (default: 20)")
    parser.add_argument("--strategy", default="sofim", help="a gradient strategy (default: sofim)")
    parser.add_argument("--repeats", type=int, default=200, help="rounds of each (default: 200)")
    parser.add_argument("--no-opacus", action="store_true", help="leave Opacus out")
    return parser.parse_args()


def bare(experiment: Experiment):
    """The logits of all records, and the product of as many residuals with the features."""
    theta = experiment.theta
    data = [client.data for client in experiment.clients]
    logits = [np.empty((len(theta), D.size), theta.dtype) for D in data]
    residuals = [head.residual(theta, D) for D in data]
    total = np.empty_like(theta)

    def one_round() -> None:
        for D, z, r in zip(data, logits, residuals, strict=True):
            np.matmul(theta, D.x, out=z)
            np.matmul(r, D.x.T, out=total)

    return one_round


def engine(experiment: Experiment) -> Callable[[], list[float]]:
    """A turn of the local engine: the rounds of one run, as users have them."""

    def turn() -> list[float]:
        marks = [time.perf_counter()]

        def mark(*_: object, **__: object) -> bool:
            marks.append(time.perf_counter())
            return len(marks) == TURN + 2

        ENGINES["local"](experiment, begin(experiment), mark)
        return between(marks)

    return turn


def tensors(client: Client):
    """A client's features and labels, for torch."""
    import torch

    x, target = client.data.x.T, client.data.target
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(target.argmax(0))


def opacus(experiment: Experiment):
    """The same round with a per-sample gradient of every record, as Opacus computes it."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    plan, config = experiment.plan, experiment.config
    classes, width = experiment.theta.shape
    module = GradSampleModule(torch.nn.Linear(width, classes, bias=False), loss_reduction="sum")
    (weight,) = module.parameters()

    data = [tensors(client) for client in experiment.clients]
    optimizers = [
        DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=1.0),
            noise_multiplier=plan.client_noise_multiplier,
            max_grad_norm=plan.clip,
            expected_batch_size=len(x),
            loss_reduction="mean",
        )
        for x, _ in data
    ]
    sizes = np.array([len(x) for x, _ in data])
    state: ServerState = begin(experiment).server

    def release(x, y, optimizer) -> Array:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y, reduction="sum").backward()
        optimizer.pre_step()  # clip, sum, add noise, divide by the number of records
        return weight.grad.numpy().copy()

    def one_round() -> None:
        with torch.no_grad():
            weight.copy_(torch.from_numpy(state.theta))
        releases = [release(*d, o) for d, o in zip(data, optimizers, strict=True)]
        G = aggregate(np.stack(releases), sizes, config.aggregation)
        step(config.strategy, state, G, config.rounds)

    return one_round


def show(experiment: Experiment, times: dict[str, list[float]]) -> None:
    """Print the table, and how it compares with the targets."""
    config, sizes = experiment.config, [client.data.size for client in experiment.clients]
    print(
        f"{config.strategy_name} on {config.dataset.name}: {sum(sizes)} records, "
        f"{len(sizes)} clients, {experiment.theta.size} parameters; ms a round\n"
    )
    best = {name: min(values) for name, values in times.items()}
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"{'':14}{'best':>9}{'median':>9}{'rounds':>8}{'best / bare':>13}")
    for name, values in times.items():
        ratio = best[name] / best["bare products"]
        print(f"{name:14}{best[name]:9.2f}{median[name]:9.2f}{len(values):8}{ratio:12.2f}x")
    print()
    for what, over, under, target in (
        ("fedsofim over the bare products", "fedsofim", "bare products", "at most 1.2"),
        ("opacus over fedsofim", "opacus", "fedsofim", "at least 50"),
    ):
        if over in times:
            b, m = best[over] / best[under], median[over] / median[under]
            print(f"{what}: {b:.2f} (best), {m:.2f} (median); target {target}")


if __name__ == "__main__":
    main()
