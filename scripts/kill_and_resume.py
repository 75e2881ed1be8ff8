"""kill -9 at random moments, and on: the same final bits as if nothing had happened.

    python scripts/kill_and_resume.py                       50 moments for each of run, sweep, tune
    python scripts/kill_and_resume.py run --moments 10 --seed 1

Each command works on a small data set in a directory of its own. It is killed at a random moment of
its life, from before it has written anything to after its last round, and started again: `run` by
`fedsofim resume`, the others by the same command. When it comes to its end, its results are
compared with those of one that was left alone, and the next begins. Prints how often it was killed.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Command(NamedTuple):
    """One command that is killed.

    Attributes:
        words: what starts it, without its directory.
        again: what goes on in a directory.
        result: all that must come out the same, of a directory.
    """

    words: Sequence[str]
    again: Callable[[Path], Sequence[str]]
    result: Callable[[Path], Any]


def main() -> None:
    """Kill each of the commands that were named, and print what was seen as JSON."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("names", nargs="*", default=[], help="run, sweep, tune; by default all")
    made.add_argument("--moments", type=int, default=50)
    made.add_argument("--seed", type=int, default=0)
    chosen = made.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = commands_in(Path(folder))
        for name in chosen.names or commands:
            seen = torment(commands[name], Path(folder) / name, chosen.moments, chosen.seed)
            print(json.dumps({"command": name, **seen}), flush=True)


def commands_in(folder: Path) -> dict[str, Command]:
    """The commands, on data that are made for them."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (np.eye(3, 5)[y] + 0.5 * rng.normal(size=(240, 5))).astype(np.float32)
    data = folder / "small.npz"
    np.savez(data, train_x=x, train_y=y, test_x=x[:60], test_y=y[:60])
    small = ["dataset=npz", f"dataset.path={data}", "partition.clients=4"]
    run = ["run", *small, "settings=published", "rounds=600", "output.checkpoint_every=7"]
    grid = ["seed=0,1,2,3", "strategy.lr=0.1,0.3,1", "rounds=100,200,300"]
    sweep = ["sweep", *small, "settings=published", *grid]
    tune = ["tune", "strategy=ftrl", *small, "privacy.epsilon=1"]
    return {
        "run": Command(run, lambda path: resume_or(run, path), run_result),
        "sweep": Command(sweep, lambda path: at(sweep, path), lambda path: tables(path, ".")),
        "tune": Command(tune, lambda path: at(tune, path), lambda p: tables(p, "coarse", "fine")),
    }


def at(words: Sequence[str], path: Path) -> list[str]:
    """The command, with its directory."""
    return [*words, f"output.dir={path}"]


def resume_or(words: Sequence[str], path: Path) -> list[str]:
    """What goes on with a run; one that was killed before it had a directory begins anew."""
    return ["resume", str(path)] if path.exists() else at(words, path)


def run_result(path: Path) -> Any:
    """The model, the metrics without their times, and what was spent."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((path / "summary.json").read_text())
    with np.load(path / "model.npz") as model:
        theta = model["theta"].tobytes()
    return theta, [{**row, "seconds": 0} for row in rows], summary["epsilon"]


def tables(path: Path, *folders: str) -> list[str]:
    """The tables of a sweep, or of both of a search."""
    return [(path / folder / "results.csv").read_text() for folder in folders]


def torment(command: Command, folder: Path, moments: int, seed: int) -> dict[str, Any]:
    """Kill one command so many times; says how often, and how many came to their end."""
    folder.mkdir()
    began = time.monotonic()
    whole = folder / "whole"
    assert start(at(command.words, whole)).wait() == 0
    life, wanted = time.monotonic() - began, command.result(whole)
    rng, kills, ends = random.Random(seed), 0, 0
    path = folder / "0"
    process = start(at(command.words, path))
    while True:
        patience = rng.uniform(0, life) if kills < moments else None  # then it may end
        if (code := ended(process, patience)) == -signal.SIGKILL:
            kills += 1
        else:
            assert code == 0, (path, code, process.stderr and process.stderr.read())
            assert command.result(path) == wanted, f"{path}: other results, seed {seed}"
            ends += 1
            if kills >= moments:
                break
            path = folder / str(ends)
        process = start(command.again(path))
    return {"kills": kills, "finished with the same bits": ends, "seconds of one": round(life, 1)}


def ended(process: "subprocess.Popen[bytes]", patience: float | None) -> int:
    """The exit code of a process that is killed after so many seconds, if it has not ended."""
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()  # too late for one that has just ended
        return process.wait()


def start(words: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start the program."""
    line = [sys.executable, "-m", "fedsofim", *words]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


if __name__ == "__main__":
    main()
