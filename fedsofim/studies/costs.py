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
        seconds: of the processor, for a round of all clients in one process. Other work on the
            machine stretches the time by the clock, and hardly this.
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


def cost_table(rounds: int = ROUNDS, experiments: Sequence[str] = (*SETTINGS,)) -> Table:
    """Table 7, measured here and now, in one process."""
    rows = [row for experiment in experiments for row in _rows(experiment, rounds)]
    header = (
        *("data", "backbone", "method", "eps", "K", "CPU ms", "x FedGD", "paper's x FedGD"),
        *("client memory x FedGD", "server memory x FedGD"),
    )
    title = (
        "Table 7: CPU milliseconds of a round of 20 clients in one process, and memory, as "
        f"multiples of DP-FedGD's; {cpu()}, NumPy {np.__version__}"
    )
    return Table(title, header, rows)


def _rows(experiment: str, rounds: int) -> Iterator[tuple[str, ...]]:
    """The methods of one data set and backbone."""
    data, backbone = SETTINGS[experiment]
    listed = [r for r in paper("runtime") if (r["dataset"], r["backbone"]) == (data, backbone)]
    asked = [
        [
            f"experiment={experiment}",
            f"strategy={METHODS[r['method']]}",
            f"privacy.epsilon={r['epsilon'] or EPSILON}",
        ]
        for r in listed
    ]
    costs = measure([parse(values) for values in compose_many(asked)], rounds)
    fedgd, first = costs[0], float(listed[0]["seconds"])
    for r, cost in zip(listed, costs, strict=True):
        seconds, client, server = cost.over(fedgd)
        ratios = (seconds, float(r["seconds"]) / first, client, server)
        about = (data, backbone, r["method"], r["epsilon"] or "all", r["steps"])
        yield (*about, f"{1000 * cost.seconds:.1f}", *(f"{x:.2f}" for x in ratios))


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
        times.append(time.process_time())
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
