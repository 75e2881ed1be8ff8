"""What secure aggregation adds to a round on Ray: seconds a round beside trust=server.

    python scripts/bench_sums.py [--clients 20 100] [--rounds 20] [--repeats 3]

DP-FedSOFIM on the embedded features, on Flower's Ray simulation with two processes, recorded as
always. `all` is the default, in which nobody may vanish; `most` lets a fifth of the clients vanish,
and so shares secrets and unmasks in stages of their own. Flower's simulation looks for messages
every 0.1 s, so an exchange takes that long at least. Repeats alternate, and the median of their
ratios counts: on a busy machine the seconds mean little, and the CPU time more. It is that of all
processes, Ray's own among them.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import psutil

from fedsofim.config.compose import compose
from fedsofim.runs import session
from fedsofim.runs.directory import Row
from fedsofim.runs.observer import Observer

LIMIT = 2.0


class Clock(Observer):
    """The CPU time of this process and all that it has started, after every round."""

    def __init__(self) -> None:
        self.cpu: list[float] = []

    def round(self, row: Row) -> None:
        mine = psutil.Process()
        times = [process.cpu_times() for process in [mine, *mine.children(recursive=True)]]
        self.cpu.append(sum(taken.user + taken.system for taken in times))


def seconds(clients: int, rounds: int, *more: str) -> tuple[float, float]:
    """Seconds and CPU seconds a round, after the first, which starts the processes."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        given = ["engine=ray", "engine.processes=2", f"rounds={rounds}", "aggregation=size"]
        given += [f"partition.clients={clients}", f"output.dir={Path(folder) / 'run'}", *more]
        rows = session.run(compose(given), observer=clock).metrics()
    wall = np.diff([row["seconds"] for row in rows]).mean()
    return float(wall), float(np.diff(clock.cpu).mean())


def main() -> None:
    """Measure, print a line for each number of clients, and fail above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    worst = 0.0
    for n in chosen.clients:
        together = ["privacy.trust=aggregate"]
        ways = {
            "server": [],
            "all": together,
            "most": [*together, f"secagg.threshold={4 * n // 5}"],
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(chosen.repeats):
            for name, more in ways.items():
                times[name].append(seconds(n, chosen.rounds, *more))
        ratios = {
            name: np.median(np.divide(taken, times["server"]), axis=0).round(2).tolist()
            for name, taken in times.items()
            if name != "server"
        }
        worst = max(worst, ratios["all"][0])
        told = {"clients": n, "over trust=server, seconds and CPU": ratios, "a round": times}
        print(json.dumps(told), flush=True)
    raise SystemExit(f"{worst:.2f} times trust=server, above {LIMIT}" if worst > LIMIT else 0)


if __name__ == "__main__":
    main()
