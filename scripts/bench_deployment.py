"""A deployed round beside a bare Flower deployment: the same SuperLink, the same SuperNodes.

    python scripts/bench_deployment.py [--clients 4] [--rounds 10] [--strategy sofim] [--checkout]
    python scripts/bench_deployment.py --clients 40 --rounds 3 --only-ours --at-once 6

Starts a SuperLink with TLS and a SuperNode for each client on this machine, and has them do two
apps in turn: one whose clients send back what came, and DP-FedSOFIM on the embedded features, whose
clients read their records, charge their ledgers and make exact noise. The bare app's server is
Flower's FedAvg as it is shipped, which looks for replies every three seconds, and once more looking
as often as ours. Prints seconds a round, their ratios, and what all of the processes take of memory
while ours runs (PSS: what they share is counted once). Ours is the thin app that `fedsofim app`
writes, as a deployment should have it; `--checkout` sends the whole repository instead.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from fedsofim.deploy.rehearsal import Federation, deal_out, project_root
from fedsofim.deploy.thin_app import write_app
from fedsofim.runs.directory import RunDir

LIMIT = 1.2
PROJECT = """[project]
name = "bare"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "bare.server:app"
clientapp = "bare.client:app"

[tool.flwr.app.config]
rounds = 5
clients = 2
often = false
marks = ""
"""
CLIENT = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def answer(message, context):
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    return Message(content, reply_to=message)
"""
SERVER = """
import json, time

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()
marks = []


def looking_often(grid):
    def exchange(messages, *, timeout=None):
        waiting, replies = set(grid.push_messages(list(messages))), []
        while waiting:
            replies += (came := list(grid.pull_messages(waiting)))
            waiting -= {reply.metadata.reply_to_message_id for reply in came}
            time.sleep(0.25 if waiting else 0)
        return replies

    grid.send_and_receive = exchange


@app.main()
def main(grid, context):
    given = context.run_config
    if given["often"]:
        looking_often(grid)
    while len(list(grid.get_node_ids())) < given["clients"]:
        time.sleep(0.1)
    theta = ArrayRecord({"theta": Array(np.zeros((10, 65), np.float32))})
    rounds, n = given["rounds"], given["clients"]
    FedAvg(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n).start(
        grid, theta, num_rounds=rounds, evaluate_fn=lambda t, _: marks.append(time.time())
    )
    open(given["marks"], "w").write(json.dumps(marks))
"""


def main() -> None:
    """Measure, and print as JSON."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--clients", type=int, default=4)
    made.add_argument("--rounds", type=int, default=10)
    made.add_argument("--strategy", default="sofim")
    made.add_argument("--checkout", action="store_true", help="not the thin app")
    made.add_argument("--only-ours", action="store_true", help="without the bare app")
    made.add_argument("--at-once", type=int, help="clients that are asked at the same time")
    chosen = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        print(json.dumps(measure(Path(folder), chosen), indent=1))


def measure(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Seconds a round of each, in one deployment."""
    clients, rounds = chosen.clients, chosen.rounds
    # Many SuperNodes on one machine: looking for tasks five times a second each would fill it.
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", str(max(0.2, clients / 20)))
    overrides = [f"partition.clients={clients}", f"strategy={chosen.strategy}"]
    files, classes = deal_out(folder, overrides)
    seen: dict[str, Any] = {"clients": clients, "rounds": rounds, "cores": os.cpu_count()}
    with Federation(folder) as federation:
        federation.serve()
        began = time.monotonic()
        for i, file in enumerate(files):
            federation.add_client(i, file, classes)
        seen["seconds to start the clients"] = round(time.monotonic() - began, 1)
        if not chosen.only_ours:
            seen["bare, as shipped"] = bare(federation, clients, rounds, often=False)
            with processor_time(federation, rounds) as seen["CPU a round, bare"]:
                seen["bare, looking often"] = bare(federation, clients, rounds, often=True)
        given = [*overrides, f"rounds={rounds}", f"engine.at_once={chosen.at_once or 'null'}"]
        with peak_memory(federation) as memory, processor_time(federation, rounds) as used:
            seen["ours"] = ours(federation, given, chosen.checkout)
        seen["CPU a round, ours"], seen["megabytes"] = used, memory
    if not chosen.only_ours:
        seen["ours / as shipped"] = round(seen["ours"] / seen["bare, as shipped"], 2)
        seen["ours / looking often"] = round(seen["ours"] / seen["bare, looking often"], 2)
        seen["limit"] = LIMIT
    return seen


def bare(federation: Federation, clients: int, rounds: int, *, often: bool) -> float:
    """Seconds a round of an app whose clients do nothing."""
    app, marks = federation.folder / "bare", federation.folder / "marks.json"
    (app / "bare").mkdir(parents=True, exist_ok=True)
    (app / "pyproject.toml").write_text(PROJECT)
    for name, text in {"__init__": "", "server": SERVER, "client": CLIENT}.items():
        (app / "bare" / f"{name}.py").write_text(text)
    given = f'rounds={rounds} clients={clients} often={str(often).lower()} marks="{marks}"'
    words = federation.run_command(app, [])
    finish(federation, [*words[: words.index("--run-config")], "--run-config", given])
    return mean(json.loads(marks.read_text()))


def ours(federation: Federation, overrides: list[str], checkout: bool) -> float:
    """Seconds a round of a private run."""
    place, thin = federation.folder / "run", federation.folder / "app"
    app = project_root(thin) if checkout else write_app(thin)
    told = finish(federation, federation.run_command(app, [*overrides, f"output.dir={place}"]))
    assert (place / "summary.json").exists(), told[-3000:]  # 'flwr run' ends with 0 all the same
    return mean([float(row["seconds"]) for row in RunDir(place).metrics()])  # since the start


def mean(marks: list[float]) -> float:
    """Seconds a round; the first brings the app to the clients."""
    return round(float(np.diff(marks)[1:].mean()), 2)


def finish(federation: Federation, command: list[str]) -> str:
    """Run a command of Flower's to its end; all that it said."""
    done = subprocess.run(
        command, env=federation.environment, capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told[-3000:]
    return told


@contextmanager
def peak_memory(federation: Federation) -> Iterator[dict[str, int]]:
    """The most that the deployment's processes have together, looked at every two seconds."""
    most, over = {"SuperLink": 0, "all": 0}, Event()
    assert federation.server is not None
    roots = {node.pid for node in federation.nodes.values()}

    def watch(server: int) -> None:
        while not over.wait(2):
            link = sum(map(proportional, group(server)))
            nodes = sum(proportional(pid) for root in roots for pid in group(root))
            most["SuperLink"] = max(most["SuperLink"], link)
            most["all"] = max(most["all"], link + nodes)

    watcher = Thread(target=watch, args=(federation.server.pid,))
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


@contextmanager
def processor_time(federation: Federation, rounds: int) -> Iterator[dict[str, float]]:
    """Seconds of CPU of either side, start and end of the run shared out among its rounds."""
    assert federation.server is not None
    sides = {
        "server": [federation.server.pid],
        "clients": [n.pid for n in federation.nodes.values()],
    }
    began = {side: sum(map(spent, leaders)) for side, leaders in sides.items()}
    used: dict[str, float] = {}
    yield used
    for side, leaders in sides.items():
        used[side] = round((sum(map(spent, leaders)) - began[side]) / rounds, 2)


def spent(leader: int) -> float:
    """Seconds of CPU of a group of processes, those that have ended among them."""
    ticks = 0
    for pid in group(leader):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def group(leader: int) -> list[int]:
    """The processes of a group."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(place.name)) == leader:
                found.append(int(place.name))
        except OSError:
            continue  # it has just ended
    return found


def proportional(pid: int) -> int:
    """A process's memory in megabytes; pages that it shares count in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    main()
