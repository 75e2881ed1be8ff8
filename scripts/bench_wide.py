"""The memory of a round on Flower with a wide model: 512 features, 1,000 classes, many clients.

    python scripts/bench_wide.py [--clients 200 1000]

A grid in this process stands for Flower's: messages go straight to the real client app, so that
what is measured is the server's part and one client's at a time. Two rounds, in a process for each
number of clients; what counts is the peak of its memory beyond what it had before the first.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.engines.flower import flower_engine
from fedsofim.runs.experiment import begin, prepare

TESTS = Path(__file__).resolve().parent.parent / "tests" / "federation"
FEATURES, CLASSES, RECORDS = 512, 1000, 5000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--nodes", type=int, default=0, help="that share them (one for each)")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(*run(options.run, options.clients[0], options.nodes))
        return
    release = CLASSES * (FEATURES + 1) * 4e-6
    print("| clients | all releases, MB | memory of a round, MB | CPU seconds a round |")
    print("|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "wide.npz"
        write(file)
        for n in options.clients:
            command = [sys.executable, __file__, "--run", str(file), "--clients", str(n)]
            said = subprocess.check_output([*command, "--nodes", str(options.nodes)], text=True)
            memory, seconds = map(float, said.splitlines()[-1].split())
            print(f"| {n:,} | {n * release:,.0f} | {memory / 1e6:,.0f} | {seconds:.1f} |")


def write(file: Path) -> None:
    """Records of noise: nothing is to be learned."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((RECORDS, FEATURES), dtype=np.float32)
    y = np.arange(RECORDS) % CLASSES
    np.savez(file, train_x=x, train_y=y, test_x=x[:CLASSES], test_y=y[:CLASSES])


def run(file: str, clients: int, nodes: int) -> tuple[float, float]:
    """Bytes that two rounds take at most beyond what was there before, and CPU time of the last."""
    given = ["dataset=npz", f"dataset.path={file}", "settings=published", "strategy=fedgd"]
    given += ["partition=iid", f"partition.clients={clients}", "rounds=2"]
    experiment = prepare(parse(compose([*given, "engine=flower"])))
    before, marks = status("VmRSS"), [time.process_time()]

    def mark(*_: object, **__: object) -> bool:
        marks.append(time.process_time())
        return False

    sys.path.insert(0, str(TESTS))
    from inprocess import InProcessGrid

    grid = InProcessGrid.simulated(nodes or clients)
    flower_engine(grid)(experiment, begin(experiment), mark)
    return status("VmHWM") - before, marks[-1] - marks[-2]


def status(name: str) -> float:
    """Bytes of this process's memory, now or at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * int(dict(line.split(":", 1) for line in lines)[name].split()[0])


if __name__ == "__main__":
    main()
