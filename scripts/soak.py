"""Ten thousand rounds in one process: memory and open files stay as they are.

    python scripts/soak.py                   10,000 rounds
    python scripts/soak.py --rounds 1000

A run on a small data set, with a checkpoint every 50 rounds. Prints the memory and the open files
at each tenth. What grows is what a run remembers of each round, a row of its metrics: the rest must
not, so after the first tenth a round may add `ROW` bytes, and no file.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.runs import session
from fedsofim.runs.directory import Row
from fedsofim.runs.observer import Observer

ROW = 4096  # bytes that one row of the metrics may take in memory


class Watch(Observer):
    """Looks at this process every so many rounds."""

    def __init__(self, every: int) -> None:
        self.every, self.seen = every, list[dict[str, float]]()
        self.began = time.process_time()

    def round(self, row: Row) -> None:
        """Look, if it is time to."""
        if row["round"] % self.every:
            return
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        now = {
            "round": row["round"],
            "megabytes": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
            "files": len(os.listdir("/proc/self/fd")),
            "CPU seconds": round(time.process_time() - self.began, 1),
        }
        self.seen.append(now)
        print(json.dumps(now), flush=True)


def main() -> None:
    """Run, and say whether anything grew."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--rounds", type=int, default=10_000)
    rounds = made.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        first, *_, last = soak(rounds, Path(folder))
    grown = 1e6 * (last["megabytes"] - first["megabytes"]) / (last["round"] - first["round"])
    assert grown < ROW, f"{grown:.0f} bytes a round"
    assert last["files"] <= first["files"], f"{first['files']} files became {last['files']}"
    print(f"{grown:.0f} bytes a round, {last['files']} files")


def soak(rounds: int, folder: Path) -> list[dict[str, float]]:
    """What was seen at each tenth of a run."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (np.eye(3, 5)[y] + 0.5 * rng.normal(size=(240, 5))).astype(np.float32)
    np.savez(folder / "small.npz", train_x=x, train_y=y, test_x=x[:60], test_y=y[:60])
    given = ["dataset=npz", f"dataset.path={folder / 'small.npz'}", "partition.clients=4"]
    given += [f"rounds={rounds}", "settings=published", "output.checkpoint_every=50"]
    watch = Watch(rounds // 10)
    session.run(compose([*given, f"output.dir={folder / 'run'}"]), observer=watch)
    return watch.seen


if __name__ == "__main__":
    main()
