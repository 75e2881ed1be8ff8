"""What a deployed round takes beside a bare Flower deployment with empty clients.

    python scripts/bench_deployment.py [--clients 3] [--rounds 6] [--repeats 2]

One SuperLink with TLS and as many SuperNodes as clients, on this machine. On them run in turn a
bare app, whose clients answer at once with nothing and whose server looks for replies as often as
ours, and DP-FedSOFIM on the embedded features, dealt out to owners with ledgers and exact noise.
The median of the rounds after the first counts. Flower starts a process for each message of each
client, so with more clients than cores the rounds are mostly the start of Python.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from fedsofim.deploy.rehearsal import Federation, deal_out, project_root
from fedsofim.runs.directory import RunDir

LIMIT = 1.2
PROJECT = """
[project]
name = "bare"
version = "0.1.0"
dependencies = []

[tool.flwr.app]
publisher = "fedsofim"

[tool.flwr.app.components]
serverapp = "bare.apps:server"
clientapp = "bare.apps:client"

[tool.flwr.app.config]
file = ""
rounds = 1
nodes = 1
"""
APPS = '''
"""A server that asks for nothing, and clients that answer with it."""

import json
import time
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@client.query()
def answer(message, context):
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid, context):
    given, ends = context.run_config, []
    while len(nodes := list(grid.get_node_ids())) < given["nodes"]:
        time.sleep(0.2)
    for _ in range(given["rounds"]):
        waiting = set(grid.push_messages([Message(RecordDict(), node, "query") for node in nodes]))
        while waiting:
            waiting -= {reply.metadata.reply_to_message_id for reply in grid.pull_messages(waiting)}
            time.sleep(0.05)
        ends.append(time.time())
    Path(given["file"]).write_text(json.dumps(ends))
'''


def bare(federation: Federation, clients: int, rounds: int) -> list[float]:
    """Seconds of each round of the bare app, after the first."""
    app, file = federation.folder / "bare", federation.folder / "ends.json"
    (app / "bare").mkdir(parents=True, exist_ok=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "bare" / "__init__.py").write_text("")
    (app / "bare" / "apps.py").write_text(APPS)
    *command, _ = federation.run_command(app, [])
    train(federation, [*command, f'file="{file}" rounds={rounds} nodes={clients}'])
    return list(np.diff(json.loads(file.read_text())))


def ours(federation: Federation, name: str, settings: list[str]) -> list[float]:
    """Seconds of each round of ours, after the first."""
    place = federation.folder / name
    given = [*settings, "dataset=owners", f"output.dir={place}"]
    train(federation, federation.run_command(project_root(), given))
    return list(np.diff([row["seconds"] for row in RunDir.open(place).metrics()]))


def train(federation: Federation, command: list[str]) -> None:
    """A run, to its end."""
    done = subprocess.run(command, env=federation.environment, capture_output=True, text=True)
    if done.returncode or "[91m" in done.stdout:
        sys.exit(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def main() -> None:
    """Measure both in turn, print the medians and their ratio, and fail above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--trust", choices=["server", "aggregate"], default="server")
    chosen = parser.parse_args()
    n, rounds = chosen.clients, chosen.rounds
    own = ["settings=published", f"rounds={rounds}", f"partition.clients={n}"]
    if chosen.trust == "aggregate":
        own += ["privacy.trust=aggregate", "aggregation=size"]
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    with tempfile.TemporaryDirectory() as name, Federation(Path(name)) as federation:
        files, classes = deal_out(federation.folder, own)
        federation.serve()
        for i in range(n):
            federation.register(i)
        federation.pin(n)
        for i, file in enumerate(files):
            federation.start_client(i, file, classes, epsilon=1000)
        own += [f"dataset.classes={classes}"]
        for k in range(chosen.repeats):
            times["bare"] += bare(federation, n, rounds)
            times["ours"] += ours(federation, f"run{k}", own)
    medians = {name: round(float(np.median(taken)), 2) for name, taken in times.items()}
    ratio = round(medians["ours"] / medians["bare"], 2)
    print(json.dumps({"clients": n, "seconds a round": medians, "ratio": ratio}))
    raise SystemExit(f"{ratio} times a bare deployment, above {LIMIT}" if ratio > LIMIT else 0)


if __name__ == "__main__":
    main()
