"""What secure aggregation adds to a round on Ray: seconds a round beside trust=server.

    python scripts/bench_sums.py [--clients 20 100] [--rounds 20] [--repeats 3]

DP-FedSOFIM on the embedded features, on Flower's Ray simulation with two processes, recorded as
always. `all` is the default, in which nobody may vanish; `most` lets a fifth of the clients vanish,
and so shares secrets and unmasks in stages of their own. Flower's simulation looks for messages
every 0.1 s, so an exchange takes that long at least. Repeats alternate, and the median of their
ratios counts: on a busy machine the seconds mean little.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.runs import session

LIMIT = 2.0


def seconds(clients: int, rounds: int, *more: str) -> float:
    """Seconds a round, after the first, which starts the processes."""
    with tempfile.TemporaryDirectory() as folder:
        given = ["engine=ray", "engine.processes=2", f"rounds={rounds}", "aggregation=size"]
        given += [f"partition.clients={clients}", f"output.dir={Path(folder) / 'run'}", *more]
        rows = session.run(compose(given)).metrics()
    return float(np.diff([row["seconds"] for row in rows]).mean())


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
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(chosen.repeats):
            for name, more in ways.items():
                times[name].append(seconds(n, chosen.rounds, *more))
        ratios = {
            name: round(float(np.median(np.divide(taken, times["server"]))), 2)
            for name, taken in times.items()
            if name != "server"
        }
        worst = max(worst, ratios["all"])
        print(json.dumps({"clients": n, "over trust=server": ratios, "seconds a round": times}))
    raise SystemExit(f"{worst:.2f} times trust=server, above {LIMIT}" if worst > LIMIT else 0)


if __name__ == "__main__":
    main()
