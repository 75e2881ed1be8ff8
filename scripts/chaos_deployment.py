"""A deployment whose parts are killed with -9 in the middle of a run, and what is left of it.

    python scripts/chaos_deployment.py                          20 trials with 8 clients
    python scripts/chaos_deployment.py --trials 1 --clients 3 --victim superlink

Everything is real and on the loopback address: TLS, keys, a SuperLink, supervised clients and
`flwr run`. In each trial one part is killed after a random round: a client's SuperNode, its
supervisor, the SuperLink, the ServerApp, or the `flwr run` command. Then is done what the manual
says: the part is started again, and the run is continued. Afterwards:

- the run is complete, every round once;
- each ledger holds a charge for every release that the server used, and no other round of the run;
- epsilon in the metrics is at least what any ledger says;
- when all is stopped as documented, no process and no port is left.

Prints a line of JSON for each trial.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedsofim.deploy import programs
from fedsofim.deploy.reach import Address, listens
from fedsofim.deploy.rehearsal import Federation, free_port, project_root
from fedsofim.privacy.ledger import opened
from fedsofim.runs.directory import RunDir

VICTIMS = ("supernode", "supervisor", "superlink", "serverapp", "flwr run")
CLASSES, ROUNDS, PATIENCE = 3, 6, 1800.0


def main() -> None:
    """Make trials, and print each."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--trials", type=int, default=20)
    made.add_argument("--clients", type=int, default=8)
    made.add_argument("--victim", choices=VICTIMS, help="always the same; by default in turn")
    made.add_argument("--seed", type=int, default=0)
    chosen = made.parse_args()
    rng = random.Random(chosen.seed)
    for number in range(chosen.trials):
        victim = chosen.victim or VICTIMS[number % len(VICTIMS)]
        after = rng.randint(1, ROUNDS - 2)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            os.environ["FEDSOFIM_STATE"] = str(Path(folder) / "state")
            seen = trial(Path(folder), chosen.clients, victim, after, rng)
        seen |= {"trial": number, "victim": victim, "after round": after}
        print(json.dumps(seen | {"seconds": round(time.monotonic() - began)}), flush=True)


def trial(
    folder: Path, clients: int, victim: str, after: int, rng: random.Random
) -> dict[str, Any]:
    """One run in which one part is killed; what was found afterwards."""
    with Deployment(folder, clients) as deployment:
        run = deployment.run()
        until(lambda: deployment.rounds() >= after, run)
        deployment.kill(victim, rng, run)
        deployment.finish(run)
        found = deployment.check()
        started = [*deployment.pids()]
    left = [pid for pid in started if Path(f"/proc/{pid}").exists() and not zombie(pid)]
    assert not left, f"processes are left: {left}"
    assert not listens(Address("127.0.0.1", deployment.federation.port)), "the port is in use"
    return found


class Deployment:
    """A server, and clients under their supervisors."""

    def __init__(self, folder: Path, clients: int) -> None:
        self.folder, self.place, self.clients = folder, folder / "run", clients
        self.federation = Federation(folder)
        self.supervisors: dict[int, subprocess.Popen[bytes]] = {}
        self.resumed = 0

    def __enter__(self) -> "Deployment":
        self.federation.serve()
        for i in range(self.clients):
            self.federation.register(i)
            rng = np.random.default_rng(i)
            y = rng.integers(CLASSES, size=80 + i)
            x = (2 * np.eye(CLASSES, 6)[y] + rng.normal(size=(80 + i, 6))).astype(np.float32)
            np.savez(self.folder / f"records{i}.npz", train_x=x, train_y=y)
            self.start_client(i)
        np.savez(self.folder / "test.npz", test_x=x, test_y=y, train_x=x, train_y=y)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.supervisors.values():
            programs.end(process)
        self.federation.__exit__()

    def start_client(self, i: int) -> None:
        """What the owner of a client types, or systemd starts."""
        command = [
            *(sys.executable, "-m", "fedsofim", "deploy", "client", "--id", str(i)),
            *("--server", f"127.0.0.1:{self.federation.port}"),
            *("--ca", str(self.folder / "server" / "ca.crt")),
            *("--data", str(self.folder / f"records{i}.npz"), "--classes", str(CLASSES)),
            *("--epsilon", "10", "--dir", str(self.folder / f"client{i}")),
            *("--port", str(free_port())),
        ]
        self.supervisors[i] = self.federation.start(command, f"supervisor{i}")

    def run(self, resume: str = "") -> "subprocess.Popen[bytes]":
        """Start the run, or continue it."""
        settings = [
            *("settings=published", "dataset=npz", f"dataset.path={self.folder / 'test.npz'}"),
            *(f"partition.clients={self.clients}", f"rounds={ROUNDS}", "engine.timeout=120"),
            *("engine.wait=600", "output.checkpoint_every=1", f"output.dir={self.place}"),
        ]
        given = [] if resume else settings
        return self.federation.start(
            self.federation.run_command(project_root(), given, resume), "flwr-run"
        )

    def rounds(self) -> int:
        """How many rounds are done."""
        return len(RunDir(self.place).metrics()) if self.place.exists() else 0

    def kill(self, victim: str, rng: random.Random, run: "subprocess.Popen[bytes]") -> None:
        """Kill a part, and start again what its owner would."""
        server, i = self.federation.server, rng.randrange(self.clients)
        assert server is not None
        pids = {
            "supernode": lambda: found(self.supervisors[i].pid, "flower-supernode"),
            "supervisor": lambda: self.supervisors[i].pid,
            "superlink": lambda: server.pid,
            "serverapp": lambda: found(server.pid, "flwr-serverapp"),
            "flwr run": lambda: run.pid,
        }
        os.kill(pids[victim](), signal.SIGKILL)
        if victim == "supervisor":
            self.supervisors[i].wait()
            self.start_client(i)
        if victim == "superlink":
            server.wait()
            self.federation.serve()

    def finish(self, run: "subprocess.Popen[bytes]") -> None:
        """Wait for the last round; continue the run whenever it ended before."""
        deadline = time.monotonic() + PATIENCE
        while not (self.place / "summary.json").exists():
            assert time.monotonic() < deadline, "the run does not end"
            # Whoever killed the command alone need do nothing: the run is the server's.
            ended = run.poll() is not None and not (self.place / ".running").exists()
            if ended or (run.poll() is not None and not self.at_work()):
                self.resumed += 1
                run = self.run(resume=str(self.place))
                time.sleep(5)
            time.sleep(1)
        until(lambda: run.poll() is not None or self.resumed == 0, run)

    def at_work(self) -> bool:
        """Whether a ServerApp is at work on the run."""
        server = self.federation.server
        return server is not None and any(
            "flwr-serverapp" in words for _, words in below(server.pid)
        )

    def check(self) -> dict[str, Any]:
        """Compare the metrics with every ledger."""
        rows = RunDir.open(self.place).metrics()
        assert [row["round"] for row in rows] == list(range(1, ROUNDS + 1)), rows
        epsilon, spent, repeated = rows[-1]["epsilon"], [], 0
        for i in range(self.clients):
            ledger = opened(self.folder / f"client{i}")
            ledger.verify()
            charged = [charge.round for charge in ledger.charges()]
            assert set(charged) == set(range(ROUNDS)), (i, charged)
            repeated += len(charged) - len(set(charged))
            spent.append(ledger.epsilon())
        assert epsilon >= max(spent) * (1 - 1e-9), (epsilon, spent)
        return {
            "resumed": self.resumed,
            "epsilon": round(epsilon, 4),
            "most in a ledger": round(max(spent), 4),
            "releases charged again": repeated,
        }

    def pids(self) -> Iterator[int]:
        """All processes of the deployment."""
        for process in (*self.supervisors.values(), self.federation.server):
            if process is not None:
                yield process.pid
                yield from (pid for pid, _ in below(process.pid))


def until(holds: Callable[[], bool], run: "subprocess.Popen[bytes]") -> None:
    """Wait for something that happens while a run goes on."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"it does not happen; flwr run: {run.poll()}"
        time.sleep(0.5)


def found(ancestor: int, name: str) -> int:
    """The process of this name below another, as soon as there is one."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for pid, words in below(ancestor):
            if name in words:
                return pid
        time.sleep(0.2)
    raise AssertionError(f"there is no {name}")


def below(ancestor: int) -> Iterator[tuple[int, str]]:
    """The processes that descend from one, with their command lines."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    for pid in parents:
        up = pid
        while up in parents and up != ancestor:
            up = parents[up]
        if up == ancestor and pid != ancestor:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            yield pid, words.decode(errors="replace")


def zombie(pid: int) -> bool:
    """Whether a process has ended, and only its parent has not noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


if __name__ == "__main__":
    main()
