"""Where a ServerApp's time goes: put into the app that `bench_devices.py` sends.

The ServerApp is the real one. This wraps a few of its functions, and Flower's grid under them, and
writes a line of JSON before the first round and after every round: seconds by part, requests by
kind, CPU and memory. A part's seconds do not contain those of the parts that it calls.
"""

import cProfile
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.supercore.protobuf.client import ProtobufClient
from flwr.superlink.grid.http_grid import HttpGrid

from fedsofim.federation import server_app, strategy
from fedsofim.federation.in_order import InOrder
from fedsofim.federation.roster import Roster
from fedsofim.federation.strategy import RuleStrategy

# What is measured, and what it is called; the rest of the time is "other".
PARTS: list[tuple[Any, str, str]] = [
    (HttpGrid, "get_nodes", "ask who is there"),
    (HttpGrid, "push_messages", "send questions"),
    (HttpGrid, "pull_messages", "look and fetch"),
    (time, "sleep", "pause"),
    (strategy, "parts_of", "decode and check"),
    (InOrder, "put", "add up"),
    (InOrder, "result", "add up"),
    (Roster, "_greet", "roster"),
    (Roster, "holders", "roster"),
    (Roster, "missing", "roster"),
    (RuleStrategy, "configure_train", "make questions"),
]


class Stopwatch:
    """Seconds by part, of the main thread; requests of all."""

    def __init__(self, file: Path) -> None:
        self.file, self.owner = file, threading.get_ident()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.asked: defaultdict[str, float] = defaultdict(float)
        self._within: list[float] = []  # for each part that is going on, what its own parts took

    def part(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, measured."""

        def measured(*given: Any, **named: Any) -> Any:
            if threading.get_ident() != self.owner:
                return function(*given, **named)
            began = time.perf_counter()
            self._within.append(0.0)
            try:
                return function(*given, **named)
            finally:
                took = time.perf_counter() - began
                self.seconds[name] += took - self._within.pop()
                if self._within:
                    self._within[-1] += took

        return measured

    def request(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same way of calling the SuperLink, with calls and their seconds counted by kind."""

        def counted(*given: Any, path: str, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*given, path=path, **named)
            finally:
                self.calls[path] += 1
                self.asked[path] += time.perf_counter() - began

        return counted

    def write(self, what: str) -> None:
        """Append a line: all since the start."""
        status = Path("/proc/self/status").read_text()
        peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), "0 0")
        told = {
            "what": what,
            "time": time.time(),
            "cpu": time.process_time(),
            "megabytes": int(peak.split()[1]) // 1024,
            "parts": dict(self.seconds),
            "calls": dict(self.calls),
            "seconds": dict(self.asked),
        }
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


def start(file: str, profile: str = "") -> None:
    """Measure this process's run into a file; with `profile`, everything it does into another."""
    found: list[Stopwatch] = []
    train = RuleStrategy._round

    def trained(*given: Any) -> Any:
        if len(found) == 1:
            found[0].write("hello")
            found.append(found[0])
        try:
            return train(*given)
        finally:
            found[0].write("round")

    serve = server_app.serve

    def served(*given: Any, **named: Any) -> Any:
        found.append(watch := Stopwatch(Path(file)))
        for owner, name, part in PARTS:
            if hasattr(owner, name):
                setattr(owner, name, watch.part(part, getattr(owner, name)))
        ProtobufClient._unary_unary = watch.request(ProtobufClient._unary_unary)  # type: ignore[method-assign]
        watch.write("start")
        if not profile:
            return serve(*given, **named)
        profiler = cProfile.Profile()
        try:
            return profiler.runcall(serve, *given, **named)
        finally:
            profiler.dump_stats(profile)

    RuleStrategy._round = trained  # type: ignore[method-assign]
    server_app.serve = served
