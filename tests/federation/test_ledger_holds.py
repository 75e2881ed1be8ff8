"""Whatever happens, in any order: never more is released than the budget allows, and tampering
with the ledger is found. What was spent is added up here from the releases that came out."""

import math
import multiprocessing
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsofim.clients import Client, Program
from fedsofim.clients.gradient import Gradient
from fedsofim.clients.steps import LocalSteps
from fedsofim.federation.owner import Owner, Request, Terms, clean
from fedsofim.models.head import examples
from fedsofim.privacy.accounting import mu_of
from fedsofim.privacy.ledger import NAME, Budget, Ledger
from fedsofim.privacy.ledger_head import LedgerHead
from fedsofim.privacy.plan import Privacy
from fedsofim.privacy.refusals import Refusal, RefusedError

THETA = np.zeros((2, 4), np.float32)
BUDGET = Budget(epsilon=3.0, delta=1e-5)
LIMIT = mu_of(3.0, 1e-5) ** 2
RECORDS = examples(
    np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32), np.array([0, 1, 1] * 3), 2
)
# Each run has one kind of client, one noise multiplier z, and so releases of mu^2 = K (2 / z)^2.
RUNS: dict[str, tuple[Program, int, float]] = {
    "a": (Gradient(), 1, 4.0),
    "b": (Gradient(), 1, 9.0),
    "c": (LocalSteps(lr=0.1, steps=3), 3, 7.0),
    "d": (Gradient(), 1, 50.0),
}
Question = tuple[str, int, int]


def owner_at(place: Path) -> Owner:
    return Owner(Client(0, RECORDS), place, Ledger(place / NAME, BUDGET, data="d"))


def ask(owner: Owner, question: Question) -> bytes:
    run, t, k = question
    program, steps, z = RUNS[run]
    plan = Privacy(epsilon=1.0, delta=1e-5, clip=1.0, noise_multiplier=z).plan(
        releases=9 * steps, clients=1, aggregation="uniform"
    )
    received = {"theta": THETA + np.float32(k)}
    return owner.release(Terms(program, plan), received, Request(run, t, "job"))[0].tobytes()


def cost(run: str) -> float:
    _, steps, z = RUNS[run]
    return steps * (2 / z) ** 2


class Storm:
    """A sequence of what may happen to one owner, and all that got out."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.rng = place, np.random.default_rng(seed)
        self.released: dict[bytes, str] = {}
        self.last: dict[str, tuple[Question, bytes]] = {}
        self.backups: list[dict[str, bytes]] = []
        self.crashed = False

    def go(self, steps: int, patch: pytest.MonkeyPatch) -> None:
        happenings: list[Callable[[], None]] = [
            self.question, self.question, self.question, self.replay, self.back_up,
            self.edit, self.roll_back, self.move, lambda: self.crash(patch),
        ]  # fmt: skip
        for _ in range(steps):
            happenings[self.rng.integers(len(happenings))]()
            assert math.fsum(cost(run) for run in self.released.values()) <= LIMIT

    def question(self, *, tampered: bool = False) -> None:
        asked = str(self.rng.choice([*RUNS])), int(self.rng.integers(9)), int(self.rng.integers(99))
        answer, told = b"", ""
        try:
            answer = ask(owner_at(self.place), asked)
        except RefusedError as error:
            told = error.told
        known, run = self.last.get(asked[0]), asked[0]
        if answer:
            assert (answer in self.released) == (known == (asked, answer))
            self.released[answer], self.last[run] = run, (asked, answer)
        elif not tampered:
            assert told == Refusal.BUDGET
            spent = math.fsum(cost(run) for run in self.released.values())
            assert spent + cost(run) > LIMIT or self.crashed

    def replay(self) -> None:
        before = self.files()[NAME] if self.last else b""
        for asked, answer in self.last.values():
            assert ask(owner_at(self.place), asked) == answer
        assert not self.last or self.files()[NAME] == before

    def files(self) -> dict[str, bytes]:
        return {f.name: f.read_bytes() for f in self.place.iterdir() if f.is_file()}

    def back_up(self) -> None:
        self.backups.append(self.files())

    def restore(self, files: dict[str, bytes]) -> None:
        shutil.rmtree(self.place)
        self.place.mkdir()
        for name, content in files.items():
            (self.place / name).write_bytes(content)

    def closed(self) -> None:
        """It is found at the next start."""
        with pytest.raises(RefusedError) as found:
            owner_at(self.place).ledger.verify()
        assert found.value.told == Refusal.ACCOUNT

    def edit(self) -> None:
        if not self.released:  # nothing is spent, so nothing can be hidden
            return
        owner_at(self.place).ledger.start()
        old = self.files()[NAME]
        where, what = int(self.rng.integers(len(old))), int(self.rng.integers(5))
        lines = old.splitlines(keepends=True)
        k = int(self.rng.integers(len(lines)))
        new = [
            old[:where] + bytes([old[where] ^ int(self.rng.integers(1, 128))]) + old[where + 1 :],
            old[:where],
            b"".join(lines[:k] + lines[k + 1 :]),
            old.replace(b'"count": ', b'"count": 0'),
            old[:-1],
        ][what]
        if new == old:
            return
        (self.place / NAME).write_bytes(new)
        self.closed()
        self.question(tampered=True)  # an edit in the middle is no way to more
        after = (self.place / NAME).read_bytes()[len(new) :]
        (self.place / NAME).write_bytes(old + after)
        owner_at(self.place).ledger.verify()

    def roll_back(self) -> None:
        owner_at(self.place).ledger.start()
        now = self.files()
        for then in self.backups if self.released else ():
            if then.get(NAME) != now.get(NAME):
                self.restore(then)
                self.closed()
                with pytest.raises(RefusedError):
                    ask(owner_at(self.place), ("a", 0, -1))
        self.restore(now)

    def move(self) -> None:
        """Another directory for the same records."""
        if not self.released:
            return
        other = self.place.with_name("other")
        with pytest.raises(RefusedError, match="have an account already"):
            ask(owner_at(other), ("a", 0, -1))

    def crash(self, patch: pytest.MonkeyPatch) -> None:
        """Between the line and its head, in the work, or before the release is kept."""
        where = [(LedgerHead, "write"), (Gradient, "release"), (Owner, "_save")]
        with patch.context() as broken, suppress(RuntimeError, ValueError):
            broken.setattr(*where[self.rng.integers(len(where))], self.fail)
            ask(owner_at(self.place), ("b", 0, int(self.rng.integers(99)) + 100))
        self.crashed = True  # what was charged is more than what got out

    @staticmethod
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")


def storms(seeds: range, place: Path, patch: pytest.MonkeyPatch) -> int:
    patch.setattr("os.fsync", lambda handle: None)
    releases = 0
    for seed in seeds:
        patch.setenv("FEDSOFIM_STATE", str(place / "state"))
        storm = Storm(place / "mine", seed)
        storm.place.mkdir(parents=True)
        storm.go(12, patch)
        releases += len(storm.released)
        shutil.rmtree(place)
    return releases


def test_storms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storms(range(40), tmp_path / "storm", monkeypatch) > 80


@pytest.mark.slow
def test_ten_thousand_storms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storms(range(1000, 11000), tmp_path / "storm", monkeypatch) > 20000


def _release_for_ever(place: Path, pipe: Connection, seed: int) -> None:
    rng = np.random.default_rng(seed)
    owner = owner_at(place)
    owner.ledger.start()
    while True:
        asked = str(rng.choice([*RUNS])), int(rng.integers(9)), int(rng.integers(10**6))
        with suppress(RefusedError):
            pipe.send((asked[0], ask(owner, asked)))


@pytest.mark.slow
def test_real_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that release are killed at any moment, three at a time on the same ledger."""
    context, rng = multiprocessing.get_context("fork"), np.random.default_rng(0)
    kills = 0
    for life in range(20):
        place = tmp_path / f"mine{life}"
        place.mkdir()
        monkeypatch.setenv("FEDSOFIM_STATE", str(tmp_path / f"state{life}"))
        out: dict[bytes, str] = {}
        for attempt in range(8):
            pipes = [context.Pipe(duplex=False) for _ in range(3)]
            workers = [
                context.Process(target=_release_for_ever, args=(place, send, seed))
                for seed, (_, send) in enumerate(pipes, start=int(rng.integers(10**9)))
            ]
            for worker in workers:
                worker.start()
            time.sleep(float(rng.uniform(0, 0.12)))
            for worker in workers:
                kills += worker.is_alive()
                worker.kill()
                worker.join()
            for receive, send in pipes:  # each worker had all of them, so they end together
                send.close()
                with suppress(EOFError, OSError):
                    while True:
                        run, release = receive.recv()
                        out[release] = run
            ledger = owner_at(place).ledger
            ledger.verify()  # a killed process is not tampering
            clean(place, ledger)
            assert not list(place.glob(".run-*"))
            assert len(out) <= len(ledger.charges())
            assert math.fsum(cost(run) for run in out.values()) <= LIMIT, attempt
    assert kills > 300
