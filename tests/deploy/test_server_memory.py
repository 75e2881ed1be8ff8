"""Real processes over TLS, slowly: what is in a server's memory and files while sums are made."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from smalldata import CLASSES, write_records

from fedsofim.deploy.rehearsal import Federation
from fedsofim.runs.directory import RunDir

PROJECT = Path(__file__).resolve().parents[2]
WITNESS = Path(__file__).resolve().parent / "hostile" / "witness"
CLIENTS, ROUNDS, PIECE = 4, 2, 1 << 26

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Needles:
    """Vectors of 8-byte words, of which any two neighbours are looked for, at any address.

    Args:
        vectors: by name.
    """

    def __init__(self, vectors: dict[str, bytes]) -> None:
        words = {name: np.frombuffer(raw, "<u8") for name, raw in vectors.items()}
        first = np.concatenate([w[:-1] for w in words.values()])
        names = np.concatenate([np.full(w.size - 1, name) for name, w in words.items()])
        order = np.argsort(first)
        self.first, self.names = first[order], names[order]
        self.second = np.concatenate([w[1:] for w in words.values()])[order]
        self.likely = np.zeros(1 << 16, bool)  # by the lowest two bytes
        self.likely[self.first.astype(np.uint16)] = True

    def found(self, pieces: Iterable[bytes]) -> set[str]:
        """The names of the vectors that are in there, in part or whole."""
        names: set[str] = set()
        for piece in pieces:
            for shift in range(min(8, len(piece) // 8)):
                words = np.frombuffer(piece, "<u8", (len(piece) - shift) // 8, shift)
                at = np.flatnonzero(self.likely[words[:-1].astype(np.uint16)])
                place = np.minimum(np.searchsorted(self.first, words[at]), self.first.size - 1)
                same = (self.first[place] == words[at]) & (self.second[place] == words[at + 1])
                names.update(self.names[place[same]].tolist())
        return names


def memory(pid: int) -> Iterator[bytes]:
    """All that a process can write to, in pieces that overlap by two words; none if it ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            for line in maps:
                span, rights = line.split()[:2]
                begin, end = (int(word, 16) for word in span.split("-"))
                for start in range(begin, end, PIECE) if rights.startswith("rw") else ():
                    with suppress(OSError):  # it is gone, or a device's
                        file.seek(start)
                        yield file.read(min(PIECE + 16, end - start))


def family(pid: int) -> dict[int, str]:
    """A process and all that it started, with their command lines."""
    parents, commands = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (place / "stat").read_text().rpartition(")")[2]
            parents[int(place.name)] = int(after_name.split()[1])
            commands[int(place.name)] = (place / "cmdline").read_text()
        except OSError:
            continue  # it has ended
    members = {pid}
    while more := {child for child, parent in parents.items() if parent in members} - members:
        members |= more
    return {member: commands[member] for member in members}


def server_files(folder: Path) -> dict[str, bytes]:
    """All files of the server: its database, checkpoints, results, and what it has said."""
    rooms = [folder / name for name in ("server", "run", "flwr")]
    files = [file for room in rooms for file in room.rglob("*") if file.is_file()]
    files += [folder / "server.log", folder / "run.log"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@needs_proc
@pytest.mark.parametrize("shift", range(9))
def test_two_words_are_found_in_a_process_at_any_address(shift: int) -> None:
    rng = np.random.default_rng(shift)
    vectors = {name: rng.bytes(80) for name in ("kept", "kept in part", "not kept")}
    needles, part = Needles(vectors), vectors["kept in part"][24:40]
    here = bytes(shift) + vectors["kept"] + bytes(7) + part
    assert needles.found([here]) == {"kept", "kept in part"}
    assert needles.found([here[: shift + 15], part[:-1], vectors["not kept"][::-1]]) == set()
    assert "kept" in needles.found(memory(os.getpid()))


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    (tmp_path / "witness").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(WITNESS), str(PROJECT)]))
    monkeypatch.setenv("WITNESS", str(tmp_path / "witness"))
    with Federation(tmp_path) as made:
        made.serve()
        for i in range(CLIENTS):
            write_records(tmp_path / f"records{i}.npz", 60 + 10 * i, seed=i)
            made.register(i)
        made.pin(CLIENTS)
        for i in range(CLIENTS):
            made.start_client(i, tmp_path / f"records{i}.npz", CLASSES)
        yield made


def vectors_of(folder: Path) -> dict[str, bytes]:
    """What the clients left, and the totals, by name."""
    left = {file.name: file.read_bytes() for file in folder.iterdir() if "-" in file.stem}
    vectors = {name: raw for name, raw in left.items() if not name.endswith(".stop")}
    for t in {name.split("-")[1] for name in vectors}:
        plain = [np.frombuffer(vectors.get(f"plain-{t}-{i}", b""), "<i8") for i in range(CLIENTS)]
        if all(values.size for values in plain):
            vectors[f"total-{t}"] = np.sum(plain, 0).tobytes()
    return vectors


def look(federation: Federation) -> dict[str, set[str]]:
    """Which vectors are in which process and file of the server, now."""
    assert federation.server is not None
    needles = Needles(vectors_of(federation.folder / "witness"))
    processes = family(federation.server.pid)
    seen = {f"{pid} {name}": needles.found(memory(pid)) for pid, name in processes.items()}
    files = server_files(federation.folder)
    return seen | {name: needles.found([raw]) for name, raw in files.items()}


def train(federation: Federation, *overrides: str) -> Iterator[tuple[str, dict[str, set[str]]]]:
    """Train, and look at the server whenever it stops for that; and when it is done."""
    folder = federation.folder
    settings = [
        *("settings=published", "strategy=fedgd", f"rounds={ROUNDS}"),
        *("dataset=owners", f"dataset.classes={CLASSES}", f"partition.clients={CLIENTS}"),
        *("privacy.trust=aggregate", "aggregation=size", f"output.dir={folder / 'run'}"),
        *overrides,
    ]
    run = federation.start(federation.run_command(PROJECT, settings), "run")
    while run.poll() is None:
        for stop in (folder / "witness").glob("*.stop"):
            yield stop.stem.split("-")[1], look(federation)
            stop.unlink()
        time.sleep(0.1)
    yield "end", look(federation)


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("threshold", [3, CLIENTS], ids=["some may vanish", "nobody may vanish"])
def test_no_single_release_is_in_a_servers_memory_or_files(
    threshold: int, federation: Federation
) -> None:
    moments = []
    for moment, seen in train(federation, f"secagg.threshold={threshold}"):
        told = {name: sorted(names) for name, names in seen.items() if names}
        for where, names in told.items():
            assert not [name for name in names if name.startswith("plain")], (moment, where, names)
        app = [names for where, names in seen.items() if "serverapp" in where]
        here = {name.partition("-")[0] for names in app for name in names}
        assert moment == "end" or moment in here, (moment, told)  # it would have been seen
        moments.append(moment)
    run = (federation.folder / "run.log").read_text()
    assert moments == ["masked", "total"] * ROUNDS + ["end"], run[-3000:]
    assert len(RunDir.open(federation.folder / "run").metrics()) == ROUNDS
    assert len(vectors_of(federation.folder / "witness")) == ROUNDS * (2 * CLIENTS + 1)
