"""An owner's account: it only grows, it survives crashes, it notices, and it says no."""

import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsofim.core.errors import ConfigError
from fedsofim.core.sums import Adjacency
from fedsofim.privacy import book
from fedsofim.privacy import ledger as ledger_module
from fedsofim.privacy.accounting import GaussianEvent, epsilon_of, mu_of
from fedsofim.privacy.book import RUNS, Account
from fedsofim.privacy.ledger import NAME, Budget, Charge, Ledger, RefusedError, opened
from fedsofim.privacy.ledger_head import EVERY, LedgerHead
from fedsofim.privacy.refusals import Refusal

BUDGET = Budget(epsilon=1.0, delta=1e-5)
DATA = "d1"


def charge(
    std: float = 1000.0,
    count: float = 1,
    run: str = "a",
    t: int = 0,
    adjacency: Adjacency = "replace-one",
) -> Charge:
    return Charge(
        run=run, round=t, terms="", adjacency=adjacency, sensitivity=20.0, std=std, count=count
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "mine" / NAME, BUDGET, data=DATA)


def again(ledger: Ledger) -> Ledger:
    """As another process sees it."""
    return Ledger(ledger.path, ledger.budget, data=ledger.data)


def test_it_covers_exactly_what_the_budget_does(ledger: Ledger) -> None:
    """The noise that calibration finds for 70 releases passes 70 times, and not once more."""
    std = math.sqrt(70) * 20.0 / mu_of(1.0, 1e-5)
    for t in range(70):
        ledger.charge(charge(std, t=t))
    assert ledger.epsilon() <= 1.0
    assert ledger.epsilon() == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(RefusedError, match="budget is epsilon 1") as refused:
        ledger.charge(charge(std))
    assert refused.value.told == Refusal.BUDGET
    assert len(ledger.charges()) == 70


def test_all_runs_share_one_budget(ledger: Ledger) -> None:
    std = 20.0 / mu_of(1.0, 1e-5)
    ledger.charge(charge(std, run="a"))
    with pytest.raises(RefusedError):
        ledger.charge(charge(std, run="b"))


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(20.0, 0.0),
        GaussianEvent(math.inf, 0.0),
        GaussianEvent(math.nan, 1.0),
        GaussianEvent(1.0, math.nan),
    ],
)
def test_what_protects_nothing_is_refused(ledger: Ledger, event: GaussianEvent) -> None:
    with pytest.raises(RefusedError):
        ledger.check([event])


def test_each_line_says_what_when_and_after_what(ledger: Ledger) -> None:
    for t in range(3):
        ledger.charge(charge(t=t))
    lines = [json.loads(line) for line in ledger.path.read_bytes().splitlines()]
    assert [line["line"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["opening"]["data"] == DATA
    assert [line["charge"]["round"] for line in lines[1:]] == [0, 1, 2]
    spent = [line["mu2"]["replace_one"] for line in lines]
    assert spent == pytest.approx([0, 4e-4, 8e-4, 12e-4], rel=1e-12)
    assert all(line["time"].endswith("+00:00") for line in lines)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e200) | st.just(1e-300), max_size=40))
def test_the_running_sum_never_says_less_than_was_spent(mus: list[float]) -> None:
    total = 0.0
    for mu in mus:
        total = book.add(total, book.mu2_of(GaussianEvent(mu, 1.0)))
    assert total >= math.fsum(mu * mu for mu in mus)


def removed(text: bytes, first: int, last: int | None = None) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join(lines[:first] + (lines[last:] if last else []))


OTHER = json.dumps({"adjacency": "some"}).encode() + b"\n"
EDITS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a count of 0": (lambda b: b.replace(b'"count": 1', b'"count": 0'), "line 2 was changed"),
    "infinite noise": (lambda b: b.replace(b"1000.0", b"Infinity"), "line 2 was changed"),
    "the last count": (lambda b: b[::-1].replace(b"1 :", b"0 :", 1)[::-1], "line 5 was changed"),
    "another run": (lambda b: b.replace(b'"run": "a"', b'"run": "b"', 1), "line 2 was changed"),
    "a time": (lambda b: b[::-1].replace(b"+", b"-", 1)[::-1], "line 5 was changed"),
    "the last lines": (lambda b: removed(b, 2), "of 5 lines 3 are missing"),
    "a line in between": (lambda b: removed(b, 2, 3), "line 3 is missing, line 4 is in its place"),
    "all lines": (lambda b: b"", "of 5 lines 5 are missing"),
    "the final newline": (lambda b: b[:-1], "of 5 lines 1 are missing or cut short"),
    "other newlines": (lambda b: b.replace(b"\n", b"\r\n"), "line 1 was changed"),
    "nonsense before": (lambda b: b"x\n" + b, "line 1 is damaged"),
    "nonsense in place": (lambda b: b[:-9] + b"nonsense\n", "line 5 is damaged"),
    "nonsense after": (lambda b: b + b"{}\n", "line 6 is damaged"),
    "a foreign line": (lambda b: b + OTHER, "line 6 is damaged"),
    "a line twice": (lambda b: b + b.splitlines(keepends=True)[-1], "line 6 is missing"),
    "NUL bytes": (lambda b: b[:-40] + bytes(40), "of 5 lines 1 are missing or cut short"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edits_are_found_and_named(ledger: Ledger, name: str) -> None:
    for t in range(4):
        ledger.charge(charge(t=t))
    edit, message = EDITS[name]
    before = ledger.path.read_bytes()
    ledger.path.write_bytes(edit(before))
    assert ledger.path.read_bytes() != before
    with pytest.raises(RefusedError, match=message) as refused:
        again(ledger).verify()
    assert refused.value.told == Refusal.ACCOUNT
    in_the_middle = name in ("a line in between", "another run", "nonsense before")
    if not in_the_middle or name == "nonsense before":  # these are found at once, too
        with pytest.raises(RefusedError, match=message):
            again(ledger).charge(charge())
    ledger.path.write_bytes(before)
    again(ledger).charge(charge())


def rehashed(text: bytes) -> bytes:
    """The same lines with charges of nothing, in a chain that is right in itself."""
    balance = book.Balance()
    for line in text.splitlines():
        said = json.loads(line)
        entry = (
            Charge(**said["charge"] | {"count": 0})
            if "charge" in said
            else book.Opening(data=DATA, budget=BUDGET)
        )
        balance = balance.after(raw := balance.line(entry, said["time"]))
        text = raw if balance.lines == 1 else text + raw
    return text


def test_a_forged_chain_is_not_the_one_that_was_written(ledger: Ledger) -> None:
    for t in range(4):
        ledger.charge(charge(t=t))
    ledger.path.write_bytes(rehashed(ledger.path.read_bytes()))
    with pytest.raises(RefusedError, match="line 5 was changed"):
        again(ledger).charge(charge())


def test_a_removed_file_and_a_rolled_back_folder_are_found(ledger: Ledger, tmp_path: Path) -> None:
    ledger.charge(charge())
    shutil.copytree(ledger.path.parent, tmp_path / "backup")
    ledger.charge(charge())
    shutil.rmtree(ledger.path.parent)
    with pytest.raises(RefusedError, match="of 3 lines 3 are missing"):
        again(ledger).charge(charge())
    shutil.move(tmp_path / "backup", ledger.path.parent)
    with pytest.raises(RefusedError, match=r"of 3 lines 1 are missing .* rolled back"):
        again(ledger).charge(charge())


def test_another_directory_for_the_same_records_is_found(ledger: Ledger, tmp_path: Path) -> None:
    ledger.charge(charge())
    other = Ledger(tmp_path / "other" / NAME, BUDGET, data=DATA)
    with pytest.raises(RefusedError, match=f"account already, in {ledger.path.parent}$"):
        other.charge(charge())
    # A copy from before is no way out, but a folder may be moved.
    shutil.copytree(ledger.path.parent, other.path.parent)
    ledger.charge(charge())
    with pytest.raises(RefusedError, match="have an account already"):
        other.charge(charge())
    shutil.rmtree(other.path.parent)
    shutil.move(ledger.path.parent, other.path.parent)
    other.charge(charge())
    assert len(again(other).charges()) == 3


def test_other_records_have_another_account(ledger: Ledger) -> None:
    ledger.charge(charge())
    with pytest.raises(RefusedError, match="of other records"):
        Ledger(ledger.path, BUDGET, data="d2").charge(charge())


def test_a_ledger_without_a_head_is_adopted_only_by_hand(ledger: Ledger) -> None:
    ledger.charge(charge())
    shutil.rmtree(ledger.head.safe.parent)
    with pytest.raises(RefusedError, match="its head is gone"):
        again(ledger).charge(charge())
    again(ledger).adopt()
    again(ledger).charge(charge())
    # But never against a head that is there.
    ledger.path.write_bytes(removed(ledger.path.read_bytes(), 2))
    with pytest.raises(RefusedError, match="are missing"):
        again(ledger).adopt()


def test_a_ledger_that_is_gone_with_one_copy_of_its_head_is_missed(ledger: Ledger) -> None:
    ledger.charge(charge())
    ledger.head.safe.unlink()
    assert len(again(ledger).charges()) == 1  # the other copy is as good
    ledger.path.unlink()
    with pytest.raises(RefusedError, match="of 2 lines 2 are missing"):
        again(ledger).charge(charge())
    ledger.head.latest.write_bytes(b"{}")
    with pytest.raises(RefusedError, match=r"its head, .*, is damaged"):
        again(ledger).charge(charge())


def test_a_changed_head_is_found(ledger: Ledger) -> None:
    for t in range(3):
        ledger.charge(charge(t=t))
    true = ledger.balance()
    for wrong in (
        true._replace(spent=book.Spent(0.0, 0.0)),
        true._replace(runs={"a": Account(made=1, charged=1.0)}),
        true._replace(day=book.Day()),
    ):
        ledger.head.write(wrong, ledger.path)
        with pytest.raises(RefusedError, match=r"its head, .*, was changed"):
            again(ledger).verify()
    ledger.head.write(true, ledger.path)
    again(ledger).verify()
    ledger.head.safe.write_bytes(b"{}")
    with pytest.raises(RefusedError, match=r"its head, .*, is damaged"):
        again(ledger).charge(charge())


class CrashError(Exception):
    pass


def crash(*_: object, **__: object) -> None:
    raise CrashError


@pytest.mark.parametrize("before", [0, 1, EVERY - 2, EVERY - 1, EVERY])
@pytest.mark.parametrize("point", ["line", "head", "safe head", "latest head"])
def test_a_crash_is_not_tampering(
    ledger: Ledger, point: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a charge is cut short, the account goes on and has forgotten nothing."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    for t in range(before):
        ledger.charge(charge(1e5, t=t))
    spent = ledger.balance().spent
    with monkeypatch.context() as patch, suppress(CrashError):
        if point == "line":
            patch.setattr("os.fsync", crash)
        elif point == "head":
            patch.setattr(LedgerHead, "write", crash)
        elif point == "safe head":  # which is not always due
            patch.setattr("fedsofim.privacy.ledger_head.write_whole", crash)
        else:
            patch.setattr("builtins.open", failing(ledger.head.latest))
        ledger.charge(charge(1e5, t=before))
    after = again(ledger).verify().spent
    assert after >= spent
    again(ledger).charge(charge(1e5, t=before + 1))
    again(ledger).verify()


def failing(path: Path) -> Callable[..., object]:
    real = open

    def opening(file: object, *given: object, **more: object) -> object:
        if file == path:
            raise CrashError
        return real(file, *given, **more)  # type: ignore[call-overload]

    return opening


def test_a_line_cut_short_does_not_count_and_is_overwritten(ledger: Ledger) -> None:
    ledger.charge(charge())
    with open(ledger.path, "ab") as file:
        file.write(ledger.balance().line(charge(t=9), "2026-01-01")[:-1])
    assert len(again(ledger).charges()) == 1
    again(ledger).charge(charge(t=1))
    assert [c.round for c in again(ledger).charges()] == [0, 1]


def test_a_power_cut_loses_the_latest_head_and_nothing_else(ledger: Ledger) -> None:
    """The lines since the head that is on disk continue its chain, and are adopted."""
    for t in range(10):
        ledger.charge(charge(1e4, t=t))
    before = ledger.balance()
    for damage in (b"", bytes(99), ledger.head.latest.read_bytes()[:-50]):
        ledger.head.latest.write_bytes(damage)
        assert again(ledger).balance() == before
        again(ledger).verify()
    again(ledger).charge(charge(1e4))
    assert len(again(ledger).charges()) == 11


def test_a_line_is_on_disk_before_its_head_and_a_new_file_with_its_name(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    write = LedgerHead.write
    monkeypatch.setattr("os.fsync", lambda handle: seen.append(os.fstat(handle).st_ino))

    def written(head: LedgerHead, *given: object) -> None:
        monkeypatch.setattr("os.fsync", lambda handle: None)
        seen.append("head")
        write(head, *given)  # type: ignore[arg-type]
        monkeypatch.setattr("os.fsync", lambda handle: seen.append(os.fstat(handle).st_ino))

    monkeypatch.setattr(LedgerHead, "write", written)
    ledger.charge(charge())
    file, folder = (path.stat().st_ino for path in (ledger.path, ledger.path.parent))
    assert seen == [file, folder, "head", file, "head"]


def test_a_charge_reads_no_more_than_the_end(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the file is."""
    for t in range(200):
        ledger.charge(charge(1e5, run=str(t), t=t))
    monkeypatch.setattr(Ledger, "_follow", crash)
    reads: list[int] = []
    lines = ledger_module._lines
    monkeypatch.setattr(ledger_module, "_lines", lambda raw: reads.append(len(raw)) or lines(raw))
    again(ledger).charge(charge(1e5))
    assert sum(reads) == 0
    assert len(ledger.balance().runs) == RUNS


@pytest.mark.parametrize(
    ("charged", "budget", "factor"),
    [
        ("add-remove", "replace-one", 2),  # replacing is removing and adding
        ("add-remove", "add-remove", 1),
        ("replace-one", "replace-one", 1),
        ("replace-one", "add-remove", 1),  # more than it need be
    ],
)
def test_a_charge_is_read_by_the_budgets_neighbours(
    charged: Adjacency, budget: Adjacency, factor: int, tmp_path: Path
) -> None:
    owner = Budget(epsilon=10, delta=1e-5, adjacency=charged)
    Ledger(tmp_path / NAME, owner, data=DATA).charge(charge(100.0, adjacency=charged))
    later = Budget(epsilon=10, delta=1e-5, adjacency=budget)
    now = Ledger(tmp_path / NAME, later, data=DATA)
    assert now.epsilon() == pytest.approx(epsilon_of(factor * 20.0 / 100.0, 1e-5), rel=1e-12)
    now.charge(charge(100.0))
    assert opened(tmp_path).budget == later


def test_two_ways_to_one_ledger_have_one_lock(ledger: Ledger, tmp_path: Path) -> None:
    ledger.charge(charge())
    (tmp_path / "link").symlink_to(ledger.path.parent)
    other = Ledger(tmp_path / "link" / NAME, BUDGET, data=DATA)
    entered = threading.Event()

    def enter() -> None:
        with other.locked():
            entered.set()

    with ledger.locked():
        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.3)
    thread.join(10)
    assert entered.is_set()


def test_two_processes_do_not_spend_the_same_budget(ledger: Ledger, tmp_path: Path) -> None:
    """Four at a time, through two names, each wanting a tenth of the budget four times."""
    std = math.sqrt(10) * 20.0 / mu_of(1.0, 1e-5)
    ledger.path.parent.mkdir()
    (tmp_path / "link").symlink_to(ledger.path.parent)
    script = """
import sys
from pathlib import Path
from fedsofim.privacy.ledger import *
ledger = Ledger(Path(sys.argv[1]), Budget(epsilon=1.0, delta=1e-5), data="d1")
for t in range(4):
    try:
        with ledger.locked():
            ledger.charge(Charge(run="a", round=t, terms="", adjacency="replace-one",
                                 sensitivity=20.0, std=float(sys.argv[2]), count=1))
    except RefusedError as error:
        assert error.told.startswith("the owner's budget"), error
"""
    paths = [ledger.path, tmp_path / "link" / NAME] * 2
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(path), str(std)]) for path in paths
    ]
    assert [process.wait() for process in processes] == [0] * 4
    assert len(ledger.charges()) == 10


def test_bad_budgets() -> None:
    for wrong in (
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"delta": 0.0},
        {"delta": 1.0},
        {"adjacency": "other"},
    ):
        with pytest.raises(ConfigError):
            Budget(**{"epsilon": 1.0, "delta": 1e-5, **wrong})  # type: ignore[arg-type]
