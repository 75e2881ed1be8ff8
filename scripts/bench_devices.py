"""Many devices at one SuperLink: what they take of CPU and memory, and where rounds spend time.

    python scripts/bench_devices.py                           100, 300 and 1,000 devices, 3 rounds
    python scripts/bench_devices.py --devices 100,300 --rounds 2 --at-once 50
    python scripts/bench_devices.py --devices 3000,10000 --idle       connected, and nothing to do
    python scripts/bench_devices.py --devices 1000,10000 --called     which never look in vain

The SuperLink is a real one, started as `fedsofim deploy server` starts it: TLS, SuperNodes let in
by key, its state in a file. So is the ServerApp, started by `flwr run` with the thin app of
`fedsofim app`: it greets, checks and adds up as it always does, and `stopwatch.py` looks on. The
devices are stand-ins (`devices.py`): a few processes that call the SuperLink as SuperNodes do, and
answer with noise. All share this machine's cores. Prints progress to stderr and JSON to stdout;
ends what it started, also on Ctrl-C or SIGTERM.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from fleet import HERE, Fleet, Seen, idle, say, span

from fedsofim.core.errors import ConfigError, require
from fedsofim.deploy.programs import end, ending_cleanly
from fedsofim.deploy.rehearsal import Federation
from fedsofim.deploy.thin_app import PACKAGE, write_app

PAPER = 10_000
FEATURES, CLASSES = 64, 10
STOPWATCH = """
import sys

sys.path.append({here!r})
import stopwatch

stopwatch.start({file!r}, {profile!r})
"""


def measure(folder: Path, chosen: argparse.Namespace, count: int) -> Seen:
    """One SuperLink with so many devices: idle, then a run."""
    spread = max(3.0, count / chosen.join)
    words = ["--spread", f"{spread:g}", "--think", f"{chosen.think:g}"]
    words += ["--state", str(folder / "server" / "state.db")] if chosen.called else []
    words += ["--features", str(FEATURES), "--classes", str(CLASSES)]
    with Federation(folder) as federation, ExitStack() as stack:
        federation.serve()
        fleet = Fleet(federation, count, chosen.processes, words)
        stack.callback(fleet.end)
        seen: Seen = {"devices": count, "seconds to connect": round(fleet.gather(chosen.limit), 1)}
        if not chosen.called:
            seen["idle"] = idle(fleet, chosen.quiet)
            say(f"  idle: {json.dumps(seen['idle'])}")
        if not chosen.idle:
            seen |= trained(federation, fleet, chosen)
        last = fleet.mark()
        seen["megabytes"] = fleet.megabytes()
        seen["failed calls"], seen["devices lost"], seen["why"] = (
            last[name] for name in ("failed", "gone", "why")
        )
    return seen


def trained(federation: Federation, fleet: Fleet, chosen: argparse.Namespace) -> Seen:
    """A run with all devices in every round: its rounds, and the greeting before them."""
    watch, app = federation.folder / "stopwatch.jsonl", write_app(federation.folder / "app")
    profile = str(chosen.profile.resolve()) if chosen.profile else ""
    with open(app / PACKAGE / "server_app.py", "a", encoding="utf-8") as file:
        file.write(STOPWATCH.format(here=str(HERE), file=str(watch), profile=profile))
    words = ["settings=published", "dataset=owners", f"dataset.classes={CLASSES}"]
    words += [f"partition.clients={fleet.count}", f"rounds={chosen.rounds}"]
    words += [f"engine.wait={chosen.limit:g}", f"engine.timeout={chosen.limit:g}"]
    words += [f"output.dir={federation.folder / 'run'}", f"strategy={chosen.strategy}"]
    words += [f"engine.at_once={chosen.at_once or 'null'}"]
    process = federation.start(federation.run_command(app, words), "run")
    try:
        spans = followed(process, watch, fleet, chosen)
    finally:
        end(process)
    told: Seen = {"hello": spans[:1], "rounds": spans[1:]}
    return told if len(spans) > chosen.rounds else told | {"stopped after": f"{chosen.limit:g} s"}


def followed(
    process: "subprocess.Popen[bytes]", watch: Path, fleet: Fleet, chosen: argparse.Namespace
) -> list[Seen]:
    """Follow a run to its end: what was used from one line of its stopwatch to the next."""
    deadline, marks, spans = time.monotonic() + chosen.limit, list[Seen](), list[Seen]()
    while len(spans) <= chosen.rounds and time.monotonic() < deadline:
        ended = process.poll() is not None
        lines = watch.read_text().splitlines() if watch.exists() else []
        for line in lines[len(marks) :]:
            marks.append(fleet.mark() | {"app": json.loads(line)})
            if len(marks) > 1:
                spans.append(span(marks[-2], marks[-1]))
                say(f"  {spans[-1]['what']}: {json.dumps(spans[-1])}")
        whole = not ended or len(spans) > chosen.rounds
        require(whole, f"the run ended; see {watch.with_name('run.log')}")
        time.sleep(0.2)
    if chosen.profile:  # written when the run ends
        process.wait(60)
    return spans


def fitted(seen: list[Seen]) -> Seen:
    """How what rounds take grows with the devices, and what that means for many."""
    found: Seen = {}
    done = [one for one in seen if one.get("rounds")]
    for what in ("seconds", "SuperLink, CPU s", "ServerApp, CPU s"):
        points = [(one["devices"], np.mean([r[what] for r in one["rounds"]])) for one in done]
        if len(points) > 1:
            n, y = np.log(np.array(points, float)).T
            power, level = np.polyfit(n, y, 1)
            many = float(np.exp(level + power * np.log(PAPER)))
            found[f"{what}, a round"] = {"grows as N^": round(power, 2), f"{PAPER}": round(many, 1)}
    # An idle SuperLink takes what its calls take, as long as it can answer them at once.
    calm = [one for one in seen if "idle" in one and one["idle"]["SuperLink, cores"] < 0.8]
    if calm:
        most = max(calm, key=lambda one: one["devices"])
        cores = most["idle"]["SuperLink, cores"] / most["devices"]
        found["idle, cores"] = {f"{PAPER}": round(cores * PAPER, 1)}
        found["devices that fill a core"] = round(1 / cores)
    return found


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--devices", default="100,300,1000", help="how many, with commas between")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--at-once", type=int, help="devices that are asked at the same time")
    made.add_argument("--strategy", default="sofim", help="a rule without set-up releases")
    made.add_argument("--idle", action="store_true", help="no run")
    made.add_argument("--called", action="store_true", help="devices don't look in vain")
    made.add_argument("--quiet", type=float, default=30.0, help="seconds that are idle")
    made.add_argument("--think", type=float, default=2.0, help="seconds that an answer takes")
    made.add_argument("--join", type=float, default=50.0, help="devices that come in a second")
    made.add_argument("--processes", type=int, default=4, help="which share the devices")
    made.add_argument("--limit", type=float, default=900.0, help="seconds that a run may take")
    made.add_argument("--profile", type=Path, metavar="FILE", help="cProfile of the ServerApp")
    return made


def main() -> None:
    """Measure, and print as JSON."""
    chosen, seen = parser().parse_args(), list[Seen]()
    counts = [int(count) for count in chosen.devices.split(",")]
    try:
        with ending_cleanly():
            for count in counts:
                say(f"{count} devices")
                with tempfile.TemporaryDirectory(prefix="devices-") as folder:
                    seen.append(measure(Path(folder), chosen, count))
    except (ConfigError, OSError, KeyboardInterrupt) as error:
        sys.exit(f"bench_devices: {error or 'stopped'}")
    finally:
        if seen:
            print(json.dumps({"cores": os.cpu_count(), "seen": seen, **fitted(seen)}, indent=1))


if __name__ == "__main__":
    main()
