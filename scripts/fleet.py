"""A SuperLink, and the devices at it, watched from outside: for `bench_devices.py`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from fedsofim.core.errors import require
from fedsofim.deploy import programs
from fedsofim.deploy.rehearsal import Federation

HERE = Path(__file__).resolve().parent
TICK = os.sysconf("SC_CLK_TCK")
LOOKED = "/v1/fleet/pull-messages"
Seen = dict[str, Any]


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


class Fleet:
    """The SuperLink of a federation, and the processes of its devices.

    Args:
        federation: whose server runs.
        count: how many devices.
        processes: how many processes share them.
        words: further options of `devices.py`.
    """

    def __init__(
        self, federation: Federation, count: int, processes: int, words: list[str]
    ) -> None:
        assert federation.server is not None
        self.federation, self.count, self.link = federation, count, federation.server.pid
        self.told: dict[int, Seen] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        shares = np.array_split(np.arange(count), min(processes, count))
        for k, share in enumerate(shares):
            place = [f"127.0.0.1:{federation.port}", str(federation.folder / "server" / "ca.crt")]
            mine = ["--first", str(share[0]), "--count", str(len(share))]
            self._start(k, [sys.executable, str(HERE / "devices.py"), *place, *mine, *words])

    def _start(self, k: int, command: list[str]) -> None:
        """Start a process of devices, and keep the last line that it prints."""
        with open(self.federation.folder / f"devices{k}.log", "wb") as log:
            process = programs.start(
                command, stdout=subprocess.PIPE, stderr=log, env=self.federation.environment
            )
        self.processes.append(process)

        def listen() -> None:
            for line in process.stdout or ():
                self.told[k] = json.loads(line)

        Thread(target=listen, daemon=True).start()

    def end(self) -> None:
        """End the devices' processes."""
        programs.end(*self.processes)

    def gather(self, seconds: float) -> float:
        """Wait until all devices have connected; how long it took."""
        began, said = time.monotonic(), 0.0
        while (here := self.mark()["here"]) < self.count:
            took = time.monotonic() - began
            require(took < seconds, f"{here} of {self.count} devices connected in {took:.0f} s")
            dead = any(process.poll() is not None for process in self.processes)
            require(not dead, f"devices ended; see {self.federation.folder}/devices*.log")
            if took - said > 10:
                say(f"  {here} of {self.count} devices are there")
                said = took
            time.sleep(0.5)
        return time.monotonic() - began

    def mark(self) -> Seen:
        """How much was used and asked until now, by kind of call."""
        told = list(self.told.values())
        sums: Seen = {k: sum(one[k] for one in told) for k in ("here", "gone", "cpu")}
        for name in ("calls", "seconds", "failed"):
            kinds = {kind for one in told for kind in one[name]}
            sums[name] = {kind: sum(one[name].get(kind, 0) for one in told) for kind in kinds}
        sums["why"] = sorted({text for one in told for text in one["why"]})[:3]
        return sums | {"time": time.monotonic(), "link": self._cpu()}

    def _cpu(self) -> float:
        """Seconds of CPU of the SuperLink."""
        fields = Path(f"/proc/{self.link}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def megabytes(self) -> Seen:
        """The most memory that the SuperLink had, and its files."""
        lines = Path(f"/proc/{self.link}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
        place = self.federation.folder
        state = sum(file.stat().st_size for file in (place / "server").glob("state.db*"))
        log = (place / "server.log").stat().st_size
        return {"SuperLink": round(peak), "state": round(state / 1e6, 1), "log": round(log / 1e6)}


def gained(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """What came to it, by kind."""
    return {k: value - before.get(k, 0) for k, value in after.items() if value != before.get(k, 0)}


def idle(fleet: Fleet, seconds: float) -> Seen:
    """What devices take that have nothing to do."""
    before = fleet.mark()
    time.sleep(seconds)
    after = fleet.mark()
    wall, cpu = after["time"] - before["time"], after["link"] - before["link"]
    calls = gained(after["calls"], before["calls"])
    asked, failed = sum(calls.values()), sum(gained(after["failed"], before["failed"]).values())
    waited = gained(after["seconds"], before["seconds"]).get(LOOKED, 0.0)
    return {
        "calls a second": round(asked / wall, 1),
        "SuperLink, cores": round(cpu / wall, 3),
        "ms of CPU a call": round(1000 * cpu / max(1, asked), 2),
        "ms until an answer": round(1000 * waited / max(1, calls.get(LOOKED, 0)), 1),
        "failed a second": round(failed / wall, 1),
        "devices, cores": round((after["cpu"] - before["cpu"]) / wall, 3),
    }


def span(before: Seen, after: Seen) -> Seen:
    """From one line of the ServerApp's stopwatch to the next, with what the fleet did meanwhile."""
    app, was = after["app"], before["app"]
    seconds, cpu = app["time"] - was["time"], after["link"] - before["link"]
    fleet, own = gained(after["calls"], before["calls"]), gained(app["calls"], was["calls"])
    parts = {k: round(v, 2) for k, v in gained(app["parts"], was["parts"]).items()}
    parts["other"] = round(seconds - sum(parts.values()), 2)
    asked = sum(fleet.values()) + sum(own.values())
    return {
        "what": app["what"],
        "seconds": round(seconds, 2),
        "SuperLink, CPU s": round(cpu, 2),
        "ServerApp, CPU s": round(app["cpu"] - was["cpu"], 2),
        "devices, CPU s": round(after["cpu"] - before["cpu"], 2),
        "ServerApp's seconds": parts,
        "calls of devices": {k.rpartition("/")[2]: int(v) for k, v in sorted(fleet.items())},
        "calls of the ServerApp": {k.rpartition("/")[2]: int(v) for k, v in sorted(own.items())},
        "calls a second": round(asked / seconds, 1),
        "ms of CPU a call": round(1000 * cpu / max(1, asked), 2),
        "ServerApp, MB": app["megabytes"],
    }
