"""Real processes over TLS, slowly: all memory of a server that adds up, read by somebody else."""

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from smalldata import CLASSES, write_records

from fedsofim.deploy.rehearsal import Federation
from fedsofim.runs.directory import RunDir

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

PROJECT = Path(__file__).resolve().parents[2]
TELLING = Path(__file__).resolve().parent / "hostile" / "telling"
CLIENTS, ROUNDS = 3, 3
# The programs of the server's side.
SERVER = (b"flower-superlink", b"flwr-serverapp")


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    with Federation(tmp_path) as made:
        made.serve()
        for i in range(CLIENTS):
            write_records(tmp_path / f"records{i}.npz", 60 + 10 * i, seed=i)
            made.register(i)
        made.pin(CLIENTS)
        yield made


def server_processes(folder: Path) -> list[int]:
    """The processes of this federation's server, by their command and environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command, own = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
        except OSError:  # it has ended, or is somebody else's
            continue
        if str(folder).encode() in own and any(name in command for name in SERVER):
            found.append(int(place.name))
    return found


def memory_of(process: int) -> Iterator[bytes]:
    """All that a process can write to, region by region."""
    try:
        maps = Path(f"/proc/{process}/maps").read_text()
        with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
            for begin, end in re.findall(r"^(\w+)-(\w+) rw", maps, re.MULTILINE):
                try:
                    memory.seek(int(begin, 16))
                    yield memory.read(int(end, 16) - int(begin, 16))
                except OSError:  # a region that has gone, or that is a device's
                    continue
    except (FileNotFoundError, ProcessLookupError):
        return


def parts(vector: np.ndarray) -> list[bytes]:
    """Some of its numbers in a row, as they lie in memory: 32 bytes do not come by chance."""
    return [vector[k : k + 4].tobytes() for k in range(0, len(vector) - 3, 4)]


def test_the_servers_memory_never_holds_what_one_client_adds(federation: Federation) -> None:
    folder, clean = federation.folder, federation.environment
    told = folder / "told"
    told.mkdir()
    path = os.pathsep.join([str(TELLING), str(PROJECT)])
    federation.environment = {**clean, "PYTHONPATH": path, "TOLD": str(told)}
    for i in range(CLIENTS):
        federation.start_client(i, folder / f"records{i}.npz", CLASSES)
    federation.environment = clean
    settings = [
        *("settings=published", "strategy=fedgd", f"rounds={ROUNDS}"),
        *("dataset=owners", f"dataset.classes={CLASSES}", f"output.dir={folder / 'run'}"),
        *("privacy.trust=aggregate", "aggregation=size", f"partition.clients={CLIENTS}"),
    ]
    run = federation.start(federation.run_command(PROJECT, settings), "run")
    looks = totals = 0
    added: list[np.ndarray] = []
    end = time.monotonic() + 600
    while run.poll() is None and time.monotonic() < end:
        files = sorted(told.glob("*.draft"), key=lambda file: file.stat().st_mtime_ns)
        added = [np.frombuffer(file.read_bytes(), np.int64) for file in files]
        rounds = [added[k : k + CLIENTS] for k in range(0, len(added), CLIENTS)]
        whole = [sum(each) for each in rounds if len(each) == CLIENTS]
        alone = [part for vector in added for part in parts(vector)]
        for process in server_processes(folder) if added else ():
            for region in memory_of(process):
                looks += 1
                assert not [part for part in alone if part in region]
                totals += sum(parts(total)[0] in region for total in whole)
        time.sleep(0.2)
    assert len(RunDir.open(folder / "run").metrics()) == ROUNDS, (folder / "run.log").read_text()
    assert len(added) == CLIENTS * ROUNDS
    assert looks
    assert totals  # it does find what the server may know
