"""What this project adds to a round on Flower: seconds a round beside a bare app.

    python scripts/bench_flower.py [--clients 20 100] [--rounds 20] [--repeats 3]

All run on Flower's Ray simulation with one node for each client and the same two processes. The
bare app has Flower's own FedAvg and clients that do nothing, and moves arrays of the same size. It
is measured as Flower ships it, which is what ours must keep up with, and once more looking for
replies as often as ours does, which shows what is left when the sleeping is the same.
Flower's simulation looks for messages every 0.1 s, so rounds come in steps, and a little more work
can cost a whole step: the mean over rounds is what a person waits for, and what is compared. The
median or the best round hides these steps. Repeats alternate; the median of their ratios counts.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fedsofim.config.compose import compose
from fedsofim.config.schema import Engine, parse
from fedsofim.engines.ray import backend_config, quiet
from fedsofim.runs import session
from fedsofim.runs.experiment import prepare

LIMIT = 1.3
ENGINE = Engine(name="ray", processes=2)

bare_client = ClientApp()


@bare_client.train()
def answer(message: Message, context: Context) -> Message:
    """Send back what came."""
    content = RecordDict(
        {
            "arrays": message.content["arrays"],
            "metrics": MetricRecord({"num-examples": 1}),
        }
    )
    return Message(content, reply_to=message)


def bare(clients: int, rounds: int, theta: Any, often: bool) -> float:
    """Seconds a round of Flower alone."""
    marks: list[float] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        if often:
            grid.pull_interval = 0.005  # type: ignore[attr-defined]
        while len(list(grid.get_node_ids())) < clients:
            time.sleep(0.1)
        FedAvg(fraction_evaluate=0.0, min_available_nodes=clients).start(
            grid,
            ArrayRecord({"theta": Array(theta)}),
            num_rounds=rounds,
            evaluate_fn=lambda t, arrays: marks.append(time.perf_counter()),
        )

    with quiet():
        run_simulation(server, bare_client, clients, backend_config=backend_config(ENGINE))
    return float(np.diff(marks)[1:].mean())  # the first round starts the processes


def ours(clients: int, rounds: int) -> float:
    """Seconds a round of DP-FedSOFIM on the embedded features, recorded as always."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["engine=ray", "engine.processes=2", f"engine.nodes={clients}"]
        place = session.run(
            compose(
                [
                    *options,
                    f"rounds={rounds}",
                    f"partition.clients={clients}",
                    f"output.dir={Path(folder) / 'run'}",
                ]
            )
        )
        seconds = [row["seconds"] for row in place.metrics()]
    return float(np.diff(seconds).mean())


def main() -> None:
    """Measure, print a line for each number of clients, and fail above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    worst = 0.0
    for clients in chosen.clients:
        theta = prepare(parse(compose([f"partition.clients={clients}"]))).theta
        times: dict[str, list[float]] = {"bare": [], "bare, looking often": [], "ours": []}
        for _ in range(chosen.repeats):
            times["bare"].append(bare(clients, chosen.rounds, theta, often=False))
            times["bare, looking often"].append(bare(clients, chosen.rounds, theta, often=True))
            times["ours"].append(ours(clients, chosen.rounds))
        ratios = {
            name: round(float(np.median(np.divide(times["ours"], taken))), 3)
            for name, taken in times.items()
            if name != "ours"
        }
        worst = max(worst, ratios["bare"])
        print(json.dumps({"clients": clients, "ours over": ratios, "seconds a round": times}))
    raise SystemExit(f"{worst:.2f} times a bare app, above {LIMIT}" if worst > LIMIT else 0)


if __name__ == "__main__":
    main()
