"""Mutated files: whatever a file holds, it is read, or refused in one line, in little memory.

    python scripts/fuzz_files.py                      100,000 files, a fifth of each kind
    python scripts/fuzz_files.py --count 2000 --seed 1

Feature files, checkpoints, configs, ledgers and metrics are written by the program itself, changed,
and read again as the commands would: bytes flipped, cut out, put in twice, cut short; numbers made
huge; parts of an archive replaced by an object that runs code when it is unpickled. It prints what
was seen as JSON. Anything but a `ConfigError` of one line, code that ran, or more than a gigabyte
ends it with an error.
"""

import argparse
import io
import json
import os
import pickle
import random
import re
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.data import datasets
from fedsofim.privacy.book import Charge
from fedsofim.privacy.ledger import Budget, Ledger, opened
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir
from fedsofim.runs.experiment import begin, prepare

MOST = 1000  # megabytes
CHARGE = Charge(
    run="a", round=0, terms="", adjacency="replace-one", sensitivity=20.0, std=1000.0, count=1
)


class Kind(NamedTuple):
    """One kind of file.

    Attributes:
        file: where the program looks for it.
        good: what it wrote there.
        read: reads it as a command would.
    """

    file: Path
    good: bytes
    read: Callable[[], Any]


class Trap:
    """Shows that it was unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def main() -> None:
    """Fuzz, and print what was seen."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--count", type=int, default=100_000)
    made.add_argument("--seed", type=int, default=0)
    chosen = made.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDSOFIM_STATE"] = str(Path(folder) / "state")
        print(json.dumps(fuzz(chosen.count, chosen.seed, Path(folder))))


def fuzz(count: int, seed: int, folder: Path) -> dict[str, int]:
    """How many files of each kind were read, and how many refused; and the memory it took."""
    kinds, mark = kinds_in(folder), folder / "unpickled"
    rng, seen = random.Random(seed), Counter[str]()
    for number in range(count):
        name = list(kinds)[number % len(kinds)]
        kind = kinds[name]
        kind.file.write_bytes(mutated(kind.good, rng, mark))
        try:
            kind.read()
            seen[f"{name} read"] += 1
        except ConfigError:
            seen[f"{name} refused"] += 1
        except BaseException:
            print(f"seed {seed}, file {number}, {name}: {kind.file.read_bytes()[:2000]!r}")
            raise
        assert not mark.exists(), (seed, number, name, "ran code")
        if number % 1000 == 0:
            check_memory(f"seed {seed}, file {number}")
        kind.file.write_bytes(kind.good)
    return {**dict(sorted(seen.items())), "megabytes": check_memory("the end")}


def check_memory(where: str) -> int:
    """The most that this process ever had, in megabytes.

    `getrusage` would also count what its parent had when it was started; Linux tells it apart.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    most = int(status["VmHWM"].split()[0]) // 1024
    assert most < MOST, f"{where}: {most} MB"
    return most


def kinds_in(folder: Path) -> dict[str, Kind]:
    """A small run, its data and a ledger, and how each of their files is read."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (np.eye(3, 5)[y] + rng.normal(size=(120, 5))).astype(np.float32)
    data = folder / "small.npz"
    np.savez_compressed(data, train_x=x, train_y=y, test_x=x[:30], test_y=y[:30])
    given = ["dataset=npz", f"dataset.path={data}", "partition.clients=4", "rounds=3"]
    values = compose([*given, "settings=published", f"output.dir={folder / 'run'}"])
    place = session.run(values)
    experiment = prepare(parse(values))
    blank, config = begin(experiment), experiment.config
    ledger = Ledger(folder / "owner" / "ledger.jsonl", Budget(epsilon=10, delta=1e-5), data="ab")
    for t in range(3):
        ledger.charge(replace(CHARGE, round=t))

    readers: dict[str, tuple[Path, Callable[[], Any]]] = {
        "features": (data, lambda: datasets.load(config.dataset, data)),
        "checkpoint": (place.path / "checkpoint.npz", lambda: RunDir(place.path).restore(blank)),
        "config": (place.path / "config.yaml", lambda: session._config_of(place, None)),
        "ledger": (ledger.path, lambda: opened(ledger.path.parent).verify()),
        "metrics": (place.path / "metrics.jsonl", lambda: RunDir(place.path).rewind(3)),
    }
    return {name: Kind(file, file.read_bytes(), read) for name, (file, read) in readers.items()}


def mutated(good: bytes, rng: random.Random, mark: Path) -> bytes:
    """A file that is no longer what it was, or hardly."""
    if good[:2] == b"PK" and rng.random() < 0.5:
        return rezipped(good, rng, mark)
    return changed(good, rng)


def changed(good: bytes, rng: random.Random) -> bytes:
    """Bytes with one to four changes."""
    raw = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw) + 1)
        length = min(rng.choice((1, 1, 4, 30, 400)), len(raw) - at)
        what = rng.randrange(7)
        if what == 0 and length:
            raw[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            raw[at : at + length] = rng.randbytes(length)
        elif what == 2:
            del raw[at : at + length]
        elif what == 3:
            raw[at:at] = raw[at : at + length]
        elif what == 4:
            del raw[at:]
        elif what == 5:
            raw[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f"))
        else:
            raw = bytearray(huge(bytes(raw), rng))
    return bytes(raw)


def huge(raw: bytes, rng: random.Random) -> bytes:
    """One of the written numbers, made very large, negative or no number."""
    found = list(re.finditer(rb"\d+", raw))
    if not found:
        return raw
    one = rng.choice(found)
    new = rng.choice((b"9" * 12, b"9" * 400, b"-1", b"1e400", b"NaN", b'"x"', b"[" * 2000, b"null"))
    return raw[: one.start()] + new + raw[one.end() :]


def rezipped(good: bytes, rng: random.Random, mark: Path) -> bytes:
    """An archive whose checksums are right, with one part changed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        chosen = rng.choice(names)
        for name in names:
            content = old.read(name)
            if name == chosen:
                content = rng.choice((changed, huge, resized, lambda c, r: pickled(mark)))(
                    content, rng
                )
            way = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
            new.writestr(name, content, compress_type=way)
    return out.getvalue()


def resized(content: bytes, rng: random.Random) -> bytes:
    """An array whose header claims another shape or type."""
    shape = rng.choice(("(99999999999,)", "(3, 999999999)", "(-5, 2)", "()", "(0, 5)", "(2**40,)"))
    kind = rng.choice(("<f4", "<f8", "|O", "<U99999999", "|V900000000", "<M8[s]", "<c16"))
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content[128:]


def pickled(mark: Path) -> bytes:
    """An array of objects, the first of which runs code when it is unpickled."""
    head = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    body = pickle.dumps([Trap(mark)])
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + body


if __name__ == "__main__":
    sys.exit(main())
