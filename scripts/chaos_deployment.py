"""Things that happen to a deployment, each at a random round, and what must be so afterwards.

    python scripts/chaos_deployment.py                            20 trials with 8 clients
    python scripts/chaos_deployment.py --trials 3 --faults 7 --rounds 12       21 things in three
    python scripts/chaos_deployment.py --trials 3 --faults 7 --rounds 12 --shuffle     in any order
    python scripts/chaos_deployment.py --clients 4 --trials 1 --kinds supernode,network

Each trial is a deployment of its own: a SuperLink with TLS and clients that are started as their
owners would start them, by `fedsofim deploy client`. At random rounds things happen, one in a
trial or `--faults` of them:

    supernode    kill -9 of a client's SuperNode; its supervisor starts it again
    supervisor   kill -9 of `fedsofim deploy client`; all that it started must end; started again
    superlink    kill -9 of the SuperLink; started again, and the run resumed
    serverapp    kill -9 of the ServerApp; the run is resumed
    command      kill -9 of `flwr run`; the run goes on without it
    stopped      a client is stopped for a minute (SIGSTOP), so that its reply comes too late
    network      one client's connection is cut for half a minute, by a proxy

Then: the run comes to its end, every round is there once; a ledger holds one charge for each round
that its client answered, and one more only if that client itself was killed, between the charge and
the answer; the epsilon of the metrics is at least that of every ledger; and after SIGTERM to server
and clients no process and no port is left.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cut import Proxy

from fedsofim.deploy.reach import require_free
from fedsofim.deploy.rehearsal import Federation, free_port
from fedsofim.deploy.thin_app import write_app
from fedsofim.privacy.ledger import opened
from fedsofim.runs.directory import RunDir

KINDS = ("supernode", "supervisor", "superlink", "serverapp", "command", "stopped", "network")
PATIENCE = 300.0  # seconds that anything may take
TIMEOUT = 20  # seconds that a round waits for replies
Seen = dict[str, object]
KILLS = {"supernode", "supervisor"}  # a client that may lose a release it was charged for


class Deployment(Federation):
    """A federation whose clients are started by `fedsofim deploy client`; the last over a proxy."""

    def __init__(self, folder: Path, clients: int) -> None:
        super().__init__(folder)
        self.clients, self.ports = clients, [free_port() for _ in range(clients)]
        self.run, self.app = folder / "run", write_app(folder / "app")

    def begin(self, rounds: int, least: int) -> None:
        """Start the server, all clients and a run."""
        self.serve()
        self.proxy = Proxy(self.port)
        rng = np.random.default_rng(0)
        for i in range(self.clients):
            y = rng.integers(3, size=80 + i)
            x = (np.eye(3, 6)[y] * 2 + rng.normal(size=(80 + i, 6))).astype(np.float32)
            (self.folder / f"client{i}").mkdir(mode=0o700)
            np.savez(self.folder / f"client{i}" / "records.npz", x=x, y=y)
            self.register(i)
            self.join(i)
        words = ["settings=published", "dataset=owners", "dataset.classes=3"]
        words += [f"partition.clients={self.clients}", f"rounds={rounds}", f"output.dir={self.run}"]
        words += [f"engine.min_clients={least}", f"engine.timeout={TIMEOUT}"]
        self.command = self.start(self.run_command(self.app, words), "run")

    def __enter__(self) -> "Deployment":
        return self

    def join(self, i: int) -> None:
        """Start a client as its owner does."""
        place = self.folder / f"client{i}"
        port = self.proxy.port if i == self.clients - 1 else self.port
        words = [sys.executable, "-m", "fedsofim", "deploy", "client", "--id", str(i)]
        words += ["--server", f"127.0.0.1:{port}", "--ca", str(self.folder / "server" / "ca.crt")]
        words += ["--data", str(place / "records.npz"), "--classes", "3", "--epsilon", "100"]
        words += ["--dir", str(place), "--port", str(self.ports[i])]
        self.nodes[i] = self.start(words, f"client{i}")

    def resume(self) -> None:
        """Continue the run."""
        words = self.run_command(self.app, [], resume=str(self.run))
        self.command = self.start(words, "run")

    def rounds(self) -> int:
        """How many rounds are done."""
        return len(RunDir(self.run).metrics()) if (self.run / "metrics.jsonl").exists() else 0

    def client(self, i: int) -> list[int]:
        """What runs of a client: its own programs, and theirs, which are told its port."""
        marks = (f"{self.folder / f'client{i}'}/", f":{self.ports[i]}")
        return sorted({pid for mark in marks for pid in self.processes(mark)})

    def processes(self, *words: str) -> list[int]:
        """What runs of this deployment, by the state folder that all of it was given."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                mine = f"FEDSOFIM_STATE={self.folder / 'state'}" in (place / "environ").read_text()
                line = (place / "cmdline").read_text().split("\0")
            except (OSError, UnicodeError):
                continue
            if mine and line != [""] and all(any(w in part for part in line) for w in words):
                found.append(int(place.name))
        return found


def strike(it: Deployment, kind: str, victim: int) -> None:
    """Let it happen, and do what an operator would do about it."""
    if kind == "supernode":
        kill(it.processes("flower-supernode", f"{it.folder / f'client{victim}'}/"))
    elif kind == "supervisor":
        it.nodes[victim].kill()
        it.nodes[victim].wait()
        until(lambda: not it.client(victim), 60)  # nothing outlives it
        it.join(victim)
    elif kind == "superlink":
        assert it.server is not None
        it.server.kill()
        it.server.wait()
        it.command.wait(PATIENCE)
        until(lambda: not it.processes("flwr-serverapp"), 60)
        it.serve()
        it.resume()
    elif kind == "serverapp":
        kill(it.processes("flwr-serverapp"))
        it.command.wait(PATIENCE)
        it.resume()
    elif kind == "command":
        it.command.kill()
        it.command.wait()
    elif kind == "stopped":
        stopped = it.client(victim)
        signal_all(stopped, signal.SIGSTOP)
        time.sleep(60)
        signal_all(stopped, signal.SIGCONT)
    else:
        it.proxy.cut_for(30)


def kill(processes: list[int]) -> None:
    """Kill -9."""
    assert processes, "there is nothing to kill"
    signal_all(processes, signal.SIGKILL)


def signal_all(processes: list[int], number: int) -> None:
    """Send a signal to all that are still there."""
    for pid in processes:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.5)


def check(it: Deployment, killed: Counter[int], rounds: int) -> Seen:
    """What must be so when the run has come to its end; how often was which client killed?"""
    rows = RunDir.open(it.run).metrics()
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    epsilon, most, again = rows[-1]["epsilon"], 0.0, 0
    for i in range(it.clients):
        ledger = opened(it.folder / f"client{i}")
        ledger.verify()
        charged = Counter(charge.round for charge in ledger.charges())
        assert set(charged) <= set(range(rounds)), f"client {i}: {charged}"
        for t, row in enumerate(rows):
            missing = any(said.startswith(f"client {i}:") for said in row.get("dropped", []))
            assert charged[t] or missing, f"client {i} was not charged for round {t + 1}"
        twice = charged.total() - len(charged)
        assert twice <= killed[i], f"client {i}, killed {killed[i]} times: {charged}"
        again += twice
        most = max(most, ledger.epsilon())
    assert epsilon >= most * (1 - 1e-9), f"the metrics say {epsilon}, a ledger {most}"
    dropped = sum(len(row.get("dropped", [])) for row in rows)
    return {"epsilon": epsilon, "most in a ledger": most, "dropped": dropped, "again": again}


def stop(it: Deployment) -> None:
    """Stop it as the documentation says, with SIGTERM; nothing may be left."""
    assert it.server is not None
    for process in [*it.nodes.values(), it.server]:
        process.terminate()
    for process in [*it.nodes.values(), it.server]:
        process.wait(60)
    until(lambda: not it.processes(), 30)
    for port in [it.port, *it.ports]:
        require_free("127.0.0.1", port)


def trial(folder: Path, kinds: list[str], clients: int, rounds: int, seed: int) -> Seen:
    """One deployment, to which these things happen, each at a random round."""
    rng, began = random.Random(seed), time.monotonic()
    os.environ["FEDSOFIM_STATE"] = str(folder / "state")
    moments = sorted(rng.sample(range(1, rounds - 1), len(kinds)))
    killed: Counter[int] = Counter()
    with Deployment(folder, clients) as it:
        it.begin(rounds, max(2, clients - len(kinds)))
        for kind, at in zip(kinds, moments, strict=True):
            # Only the last client is behind the proxy.
            victim = clients - 1 if kind == "network" else rng.randrange(clients)
            until(lambda at=at: it.rounds() >= at)  # type: ignore[misc]
            time.sleep(rng.uniform(0, 5))
            killed[victim] += kind in KILLS
            strike(it, kind, victim)
        until((it.run / "summary.json").exists)
        if kinds[-1] != "command":
            assert it.command.wait(120) in (0, -signal.SIGKILL)
        seen = check(it, killed, rounds)
        stop(it)
    return {"rounds": moments, **seen, "seconds": round(time.monotonic() - began)}


def main() -> None:
    """Let things happen, and print what was seen, one line of JSON for each trial.

    What a trial that failed has written is kept.
    """
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--trials", type=int, default=20)
    made.add_argument("--clients", type=int, default=8)
    made.add_argument("--rounds", type=int, default=6)
    made.add_argument("--faults", type=int, default=1, help="things that happen in one trial")
    made.add_argument("--kinds", default=",".join(KINDS))
    made.add_argument("--shuffle", action="store_true", help="things happen in any order")
    made.add_argument("--seed", type=int, default=0)
    chosen = made.parse_args()
    kinds, failed = chosen.kinds.split(","), False
    for number in range(chosen.trials):
        first, seed = number * chosen.faults, chosen.seed + number
        drawn = [kinds[(first + k) % len(kinds)] for k in range(chosen.faults)]
        if chosen.shuffle:
            random.Random(f"order {seed}").shuffle(drawn)
        folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        try:
            seen = trial(folder, drawn, chosen.clients, chosen.rounds, seed)
            shutil.rmtree(folder)
        except Exception as error:
            failed, seen = True, {"failed": f"{type(error).__name__}: {error}", "see": str(folder)}
        print(json.dumps({"kinds": drawn, "seed": seed, **seen}), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
