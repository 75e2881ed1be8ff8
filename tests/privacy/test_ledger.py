"""An owner's account: it only grows, it survives crashes, and it says no."""

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsofim.core.errors import ConfigError
from fedsofim.privacy.accounting import GaussianEvent, epsilon_of, mu_of
from fedsofim.privacy.ledger import Budget, Charge, Ledger, RefusedError
from fedsofim.privacy.mechanism import Adjacency


def charge(
    std: float = 100.0,
    count: float = 1,
    run: str = "a",
    t: int = 0,
    adjacency: Adjacency = "replace-one",
) -> Charge:
    return Charge(
        run=run,
        round=t,
        terms="",
        adjacency=adjacency,
        sensitivity=20.0,
        std=std,
        count=count,
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    with Ledger(tmp_path / "ledger.jsonl", Budget(epsilon=1.0, delta=1e-5)).locked():
        pass
    return Ledger(tmp_path / "ledger.jsonl", Budget(epsilon=1.0, delta=1e-5))


def test_it_covers_exactly_what_the_budget_does(ledger: Ledger) -> None:
    """The noise that calibration finds for 70 releases passes 70 times, and not once more."""
    std = math.sqrt(70) * 20.0 / mu_of(1.0, 1e-5)
    for t in range(70):
        ledger.charge(charge(std, t=t))
    assert ledger.epsilon() <= 1.0
    assert ledger.epsilon() == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(RefusedError, match="budget is epsilon 1"):
        ledger.charge(charge(std))
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


def test_a_line_cut_short_does_not_count_and_is_overwritten(ledger: Ledger) -> None:
    ledger.charge(charge(1000.0))
    with open(ledger.path, "ab") as file:
        file.write(b'{"run": "a", "rou')
    assert len(ledger.charges()) == 1
    ledger.charge(charge(1000.0, t=1))
    assert [c.round for c in ledger.charges()] == [0, 1]


OTHER = json.dumps({**asdict(charge()), "adjacency": "some"}).encode() + b"\n"


@pytest.mark.parametrize("damage", [b"x\n", b"{}\n", b"\n", b'{"run": 1}\n', OTHER])
def test_other_damage_closes_the_account(ledger: Ledger, damage: bytes) -> None:
    ledger.charge(charge(1000.0))
    ledger.path.write_bytes(damage + ledger.path.read_bytes())
    with pytest.raises(RefusedError, match="line 1 is damaged"):
        ledger.charge(charge(1000.0))


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
    Ledger(tmp_path / "ledger.jsonl", owner).charge(charge(adjacency=charged))
    again = Ledger(tmp_path / "ledger.jsonl", Budget(epsilon=10, delta=1e-5, adjacency=budget))
    assert again.epsilon() == epsilon_of(factor * 20.0 / 100.0, 1e-5)


def test_a_new_ledger_is_on_disk_with_its_name(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    ledger.charge(charge(1000.0))
    assert synced == [path.stat().st_ino for path in (ledger.path, ledger.path.parent)]


@settings(max_examples=30, deadline=None)
@given(stds=st.lists(st.floats(30, 1e4), max_size=12), epsilon=st.floats(0.1, 20))
def test_no_sequence_of_charges_exceeds_the_budget(
    stds: list[float], epsilon: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(file, Budget(epsilon=epsilon, delta=1e-6))
    for std in stds:
        before = file.read_bytes() if file.exists() else b""
        try:
            ledger.charge(charge(std))
        except RefusedError:
            assert (file.read_bytes() if file.exists() else b"") == before
        else:
            assert file.read_bytes().startswith(before)
        assert ledger.epsilon() <= epsilon * (1 + 1e-9)


def test_two_processes_do_not_spend_the_same_budget(ledger: Ledger) -> None:
    """Ten at a time, each wanting a tenth of the budget twice: ten charges fit, not eleven."""
    std = math.sqrt(10) * 20.0 / mu_of(1.0, 1e-5)
    script = f"""
from pathlib import Path
from fedsofim.privacy.ledger import *
ledger = Ledger(Path({str(ledger.path)!r}), Budget(epsilon=1.0, delta=1e-5))
for t in range(4):
    try:
        with ledger.locked():
            ledger.charge(Charge(run="a", round=t, terms="", adjacency="replace-one",
                                 sensitivity=20.0, std={std}, count=1))
    except RefusedError:
        pass
"""
    processes = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(4)]
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
