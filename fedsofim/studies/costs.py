"""Table 7: what a round of each method costs, in time and in memory, beside DP-FedGD's."""

import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from fedsofim.config.compose import compose_many
from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array, flatten
from fedsofim.engines import local
from fedsofim.reports.tables import Table, paper
from fedsofim.runs.experiment import Experiment, RunState, begin, prepare
from fedsofim.strategies.rule import broadcast
from fedsofim.studies.reproduce import METHODS

SETTINGS = {
    "table3": ("cifar10", "resnet20"),
    "table5": ("cifar10", "vgg16"),
    "table4": ("pathmnist", "resnet20"),
    "table6": ("pathmnist", "vgg16"),
}
ROUNDS, PASSES = 5, 3
EPSILON = 5.0  # where the budget makes no difference


class Cost(NamedTuple):
    """What a method costs.

    Attributes:
        seconds: of a round of all clients, in one process.
        client: bytes that a client receives, keeps and sends for a round, and sends once.
        server: bytes that the server keeps between rounds.
    """

    seconds: float
    client: int
    server: int

    def over(self, other: "Cost") -> tuple[float, float, float]:
        """As multiples of another's."""
        return (
            self.seconds / other.seconds,
            self.client / other.client,
            self.server / other.server,
        )


def cost_table(rounds: int = ROUNDS, experiments: Sequence[str] = tuple(SETTINGS)) -> Table:
    """Table 7, measured here and now, in one process."""
    listed = [r for r in paper("runtime") if (r["dataset"], r["backbone"]) == SETTINGS["table3"]]
    keys = [(r["method"], r["epsilon"], r["steps"]) for r in listed]
    columns = [list(_column(experiment, keys, rounds)) for experiment in experiments]
    rows = []
    for key, cells in zip(keys, zip(*columns, strict=True), strict=True):
        method, epsilon, steps = key
        rows.append((method, epsilon or "all", steps, *(text for cell in cells for text in cell)))
    header = ["method", "eps", "K"]
    for experiment in experiments:
        data, backbone = SETTINGS[experiment]
        header += [f"{data} {backbone}, ms", "x FedGD", "paper's", "client memory", "server memory"]
    title = (
        "Table 7: milliseconds a round of 20 clients in one process, and memory, as multiples of "
        f"DP-FedGD's; {cpu()}, {np.__name__} {np.__version__}"
    )
    return Table(title, tuple(header), rows)


def _column(
    experiment: str, keys: Sequence[tuple[str, str, str]], rounds: int
) -> Iterator[tuple[str, ...]]:
    theirs = {
        (r["method"], r["epsilon"]): float(r["seconds"])
        for r in paper("runtime")
        if (r["dataset"], r["backbone"]) == SETTINGS[experiment]
    }
    asked = [
        [
            f"experiment={experiment}",
            f"strategy={METHODS[method]}",
            f"privacy.epsilon={epsilon or EPSILON}",
        ]
        for method, epsilon, _ in keys
    ]
    configs = [parse(values) for values in compose_many(asked)]
    costs = measure(configs, rounds)
    for (method, epsilon, _), cost in zip(keys, costs, strict=True):
        time_ratio, client, server = cost.over(costs[0])
        their_ratio = theirs[method, epsilon] / theirs["DP-FedGD", ""]
        ratios = (f"{x:.2f}" for x in (time_ratio, their_ratio, client, server))
        yield (f"{1000 * cost.seconds:.1f}", *ratios)


def measure(configs: Sequence[Config], rounds: int) -> list[Cost]:
    """The cost of each config, on the same records; the least of passes that take turns."""
    base = prepare(configs[0])
    experiments = [base._replace(config=c, plan=c.plan()) for c in configs]
    best: list[Cost | None] = [None] * len(configs)
    for _ in range(PASSES):
        for i, experiment in enumerate(experiments):
            cost, before = _measured(experiment, rounds), best[i]
            best[i] = cost if before is None or cost.seconds < before.seconds else before
    return [cost for cost in best if cost is not None]


def _measured(experiment: Experiment, rounds: int) -> Cost:
    """The median round, and what is held after it."""
    times: list[float] = []
    sent = 0

    def on_round(now: RunState, G: Array | None, **notes: Any) -> bool:
        nonlocal sent
        times.append(time.perf_counter())
        sent = 0 if G is None else G.nbytes  # a client's release has the aggregate's shape
        return now.server.t >= rounds + 1

    state = local.run(experiment, begin(experiment), on_round)
    each = np.diff(times[len(experiment.config.stages) :])
    config, n = experiment.config, len(experiment.clients)
    K, width = experiment.theta.shape
    once = 4 * sum(stage.length(width - 1, K) for stage in config.stages)
    received = sum(a.nbytes for a in broadcast(config.strategy, state.server).values())
    client = received + sent + _bytes(state.clients) // n + once
    return Cost(median(each), client, _bytes(state.server))


def _bytes(held: Any) -> int:
    return sum(np.asarray(a).nbytes for a in flatten(held).values())


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
