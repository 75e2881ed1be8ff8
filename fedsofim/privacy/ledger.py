"""An owner's account of what was released about its records: a file that only grows, and its head.

Every release is charged before it is sent, and a release that the budget does not cover is refused,
whoever asks. The lines, in `book.py`, form a chain. What they come to is kept apart from them, in
the user's own folder under the digest of the records: the head. So lines that are gone, a folder
that was rolled back and another folder for the same records are noticed, and a charge takes as long
after a hundred thousand others as after one.

**Order.** A line is on disk before its head is written, and both are before the release exists. So
the file is never behind the head. It may be ahead: after a crash by a line whose release never
left, after a power cut by the lines since the head that is on disk. Lines ahead that continue the
chain are adopted, for they can only say that more was spent. A last line that was cut short is
dropped: it was not on disk, so nothing followed it. A head ahead of the file is tampering.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from fedsofim.core.errors import require
from fedsofim.core.files import locked, sync_folder
from fedsofim.privacy.accounting import GaussianEvent, epsilon_of
from fedsofim.privacy.book import Balance, Budget, Charge, Entry, Opening, add, entry_of, mu2_of
from fedsofim.privacy.ledger_head import Known, LedgerHead, find
from fedsofim.privacy.policy import Policy
from fedsofim.privacy.refusals import Refusal, RefusedError

__all__ = ["NAME", "Budget", "Charge", "Ledger", "RefusedError", "opened"]
NAME = "ledger.jsonl"


class Ledger:
    """The account in one file, with its head elsewhere.

    Args:
        path: the file.
        budget: what its owner allows.
        data: the digest of the records.
        policy: what else its owner asks for.
    """

    def __init__(
        self, path: Path, budget: Budget, *, data: str, policy: Policy | None = None
    ) -> None:
        self.path, self.budget, self.data = path, budget, data
        self.policy, self.head = policy or Policy(), LedgerHead(data)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out: two releases must not spend the same budget.

        There is one lock for the records, by whatever path the ledger is reached.
        """
        with locked(self.head.safe.with_suffix(".lock")):
            yield

    @contextmanager
    def working(self, run: str, seconds: float = 600) -> Iterator[None]:
        """Keep others from the same run while its release is computed, and the ledger free."""
        lane = hashlib.sha256(run.encode()).hexdigest()[0]  # few files, however many runs
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.head.safe.with_suffix(f".{lane}.lock"), seconds))
            except TimeoutError:
                raise RefusedError(f"run {run}: others are at work on it", Refusal.BUSY) from None
            yield

    def balance(self) -> Balance:
        """What was spent so far; reads the head and the end of the file, however long it is."""
        known = self._known()
        if known is None or not self.path.is_file():
            return self.verify()
        balance = known.balance
        with open(self.path, "rb") as file:
            file.seek(balance.start)
            last, rest = file.read(balance.size - balance.start), file.read()
        if hashlib.sha256(last).hexdigest() != balance.last:
            return self.verify()  # which says what is wrong
        try:
            true = balance.data == self.data and json.loads(last)["mu2"] == balance.spent._asdict()
            require(true, f"its head, {self.head.safe}, was changed")
            for line in _lines(rest):
                balance = balance.after(line)
        except ValueError as error:
            self._close(str(error))
        return balance

    def verify(self) -> Balance:
        """Read everything, and refuse to go on if anything is not as it was written.

        Raises:
            RefusedError: with what is wrong, for the owner.
        """
        known = self._known()
        if not self.path.exists() and known is None:
            return Balance()
        # While the file is read others may write to it, so it is compared with the head of before.
        balance, then, lines = Balance(), Balance(), known.balance.lines if known else 0
        for balance in self._follow() if self.path.exists() else ():
            then = balance if balance.lines == lines else then
        if balance.data not in ("", self.data):
            self._close("it is of other records; give these a directory of their own")
        if known is None:
            if balance.runs:
                self._close("its head is gone; if you moved it here: fedsofim ledger adopt DIR")
            return balance
        if balance.lines < lines and known.path != self.path.resolve():
            self._close(f"these records have an account already, in {known.path.parent}")
        if balance.lines < lines:
            self._close(
                f"of {lines} lines {lines - balance.lines} are missing or cut short; they were "
                "removed, or the folder was rolled back"
            )
        if then.last != known.balance.last:
            self._close(f"line {lines} was changed after it was written")
        if then != known.balance:
            self._close(f"its head, {self.head.safe}, was changed")
        return balance

    def start(self) -> Balance:
        """Verify everything, and let the head catch up with lines that a crash left ahead of it."""
        with self.locked():
            balance = self.verify()
            if balance.lines:
                self.head.write(balance, self.path)
            return balance

    def adopt(self) -> Balance:
        """Make the head of a ledger that was moved to this machine, and has none here."""
        if self._known() is None and self.path.is_file():
            balance = max(self._follow(), key=lambda b: b.lines, default=Balance())
            if balance.data == self.data:
                self.head.write(balance, self.path)
        return self.verify()

    def history(self) -> list[tuple[str, Charge]]:
        """Everything charged so far, and when, after all of it was verified."""
        self.verify()
        lines = _lines(self.path.read_bytes()) if self.path.exists() else []
        said = [(values["time"], entry_of(values)) for values in map(json.loads, lines)]
        return [(time, entry) for time, entry in said if isinstance(entry, Charge)]

    def charges(self) -> list[Charge]:
        """Everything charged so far."""
        return [charge for _, charge in self.history()]

    def epsilon(self) -> float:
        """The epsilon spent so far, at the budget's delta."""
        spent = self.balance().spent.by(self.budget.adjacency)
        return epsilon_of(math.sqrt(spent), self.budget.delta)

    def check(self, events: Sequence[GaussianEvent], run: str = "") -> Balance:
        """Refuse unless budget and policy cover these events of a run after all before."""
        balance, budget = self.balance(), self.budget
        account = balance.runs.get(run)
        spent = then = balance.spent.by(budget.adjacency)
        by_run = account.spent.by(budget.adjacency) if account else 0.0
        for event in events:
            if not event.mu >= 0:
                raise RefusedError("a release without a cost that can be counted")
            then, by_run = add(then, mu2_of(event)), add(by_run, mu2_of(event))
        if not budget.covers(then):
            before, after = (epsilon_of(math.sqrt(mu2), budget.delta) for mu2 in (spent, then))
            raise RefusedError(
                f"the owner's budget is epsilon {budget.epsilon:g} at delta {budget.delta:g} "
                f"({budget.adjacency}); {before:.4g} is spent, and this would make it {after:.4g}"
            )
        self.policy.check_run(budget, by_run)
        return balance

    def charge(self, charge: Charge) -> Balance:
        """Write a charge to disk, or refuse it; returns only when it would survive a crash.

        Only under `locked`.
        """
        time = now()
        balance = self.check([charge.event(self.budget.adjacency)], charge.run)
        today = balance.day.at(time)
        self.policy.check_day(self.budget, today, today.plus(charge.spent()))
        if balance.lines and not self.head.safe.is_file():
            self.head.write(balance, self.path)  # a crash came before the very first head
        if balance.budget != self.budget:
            balance = self._append(balance, Opening(data=self.data, budget=self.budget), time)
        return self._append(balance, charge, time)

    def _append(self, balance: Balance, entry: Entry, time: str) -> Balance:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        line, new = balance.line(entry, time), not balance.lines
        with open(self.path, "ab") as file:
            file.truncate(balance.size)  # what a crash cut short
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.path.parent)
        balance = balance.after(line)
        self.head.write(balance, self.path)
        return balance

    def _follow(self) -> Iterator[Balance]:
        """The balance after each line."""
        balance = Balance()
        try:
            require(self.path.is_file(), "it is not a file")
            for line in _lines(self.path.read_bytes()):
                balance = balance.after(line)
                yield balance
        except (ValueError, OSError) as error:
            self._close(str(error))

    def _known(self) -> Known | None:
        try:
            return self.head.read()
        except (ValueError, OSError) as error:
            self._close(str(error))

    def _close(self, why: str) -> NoReturn:
        raise RefusedError(f"{self.path}: {why}", Refusal.ACCOUNT)


def _lines(raw: bytes) -> list[bytes]:
    """The whole lines; one that was cut short never counted."""
    return [line + b"\n" for line in raw.split(b"\n")[:-1]]


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def opened(folder: Path) -> Ledger:
    """The ledger in a folder, with what it says itself about its records and its budget."""
    path = folder / NAME
    try:
        with open(path, "rb") as file:
            data = str(json.loads(file.readline())["opening"]["data"])
    except Exception:  # a head may still know it, and `verify` then says what is wrong
        data = find(path)
    known = LedgerHead(data).read() if data else None
    if known is None and not path.is_file():
        raise RefusedError(f"{path}: there is no ledger", Refusal.ACCOUNT)
    ledger = Ledger(path, Budget(epsilon=math.inf, delta=1e-5), data=data)
    balance = known.balance if known else Balance()
    ledger.budget = balance.budget or ledger.budget
    return ledger
