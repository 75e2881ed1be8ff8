"""The memory of a run on a million records, over the size of its features.

    python scripts/bench_memory.py [--records 1000000] [--features 64]

Features are written to a file in float32, half precision and 8 bit, and DP-FedSOFIM is trained on
each for three rounds with 20 clients, in a process of its own. What counts is the peak of its
memory, mapped pages of the file among it, beyond that of the same run with a thousand records.
Beside it, the CPU time of a round on one thread, and as if the features were floats in memory.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.data.features import half, quantise
from fedsofim.engines import ENGINES
from fedsofim.models import coded
from fedsofim.runs.experiment import begin, prepare

KINDS = {"float32": dict, "float16": half, "uint8": quantise}
LIMIT = 1.3


def main() -> None:
    """Measure, print, and fail above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--run", nargs=2, metavar=("FILE", "SETTINGS"), help=argparse.SUPPRESS)
    parser.add_argument("--at-once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(*run(*options.run, options.at_once))
        return
    print("| held as | settings | features, MB | memory over them | round, ms | as floats, ms |")
    print("|---|---|---:|---:|---:|---:|")
    rows = [row for kind in KINDS for row in table(kind, options.records, options.features)]
    worst = max(rows)
    raise SystemExit(f"{worst:.2f} times the features, above {LIMIT}" if worst > LIMIT else 0)


def table(kind: str, records: int, features: int) -> list[float]:
    """Print the rows of one kind of number; how often the features they took."""
    size, found = records * features * np.dtype(kind).itemsize, []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{n}.npz" for n in (1_000, records)]
        write(kind, files, features)
        for settings in ("published", "auto"):
            (base, _), (peak, seconds) = (measured(file, settings) for file in files)
            _, before = measured(files[1], settings, "--at-once")
            found.append((peak - base) / size)
            print(
                f"| {kind} | {settings} | {size / 1e6:.0f} | {found[-1]:.2f} | "
                f"{1e3 * seconds:.0f} | {1e3 * before:.0f} |",
                flush=True,
            )
    return found


def write(kind: str, files: list[Path], features: int) -> None:
    """Files with as many records as their names say."""
    for file in files:
        rng, n = np.random.default_rng(0), int(file.stem) + 1_000
        x, y = rng.standard_normal((n, features), dtype=np.float32), rng.integers(0, 10, n)
        arrays = {"train_x": x[1_000:], "test_x": x[:1_000]}
        labels = {"train_y": y[1_000:], "test_y": y[:1_000]}
        np.savez(file, **KINDS[kind](arrays), **labels)


def measured(file: Path, settings: str, *more: str) -> tuple[float, float]:
    """The peak of memory of a run, in bytes, and seconds of a round, from a process of its own."""
    command = [sys.executable, __file__, "--run", str(file), settings, *more]
    peak, seconds = subprocess.check_output(command, text=True).split()
    return float(peak), float(seconds)


def run(file: str, settings: str, at_once: bool) -> tuple[float, float]:
    """The same, in this process."""
    if at_once:
        coded.LARGE = 1 << 62
    given = ["dataset=npz", f"dataset.path={file}", f"settings={settings}", "rounds=3"]
    experiment = prepare(parse(compose([*given, "partition=iid", "partition.clients=20"])))
    marks: list[float] = []

    def mark(*_: object, **__: object) -> bool:
        marks.append(time.process_time())
        return False

    ENGINES["local"](experiment, begin(experiment), mark)
    return peak_memory(), float(np.diff(marks)[-2:].min())


def peak_memory() -> float:
    """The most bytes that this process has had; getrusage would count those of its parent, too."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024.0 * int(status["VmHWM"].split()[0])


if __name__ == "__main__":
    main()
