"""`fedsofim ledger`: what was spent, and whether the ledger is as it was written."""

import json
import math

import pytest

from fedsofim.privacy import ledger as ledger_module
from fedsofim.privacy.accounting import epsilon_of, mu_of
from fedsofim.privacy.ledger import NAME, Budget, Charge, Ledger


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A ledger of three days: 4 releases of run aa, then 2 of run bb."""
    ledger = Ledger(tmp_path / "mine" / NAME, Budget(epsilon=10.0, delta=1e-5), data="d")
    for k in range(6):
        monkeypatch.setattr(ledger_module, "now", lambda k=k: f"2026-01-0{1 + k // 2}T10:00:00")
        ledger.charge(
            Charge(
                run="aa" if k < 4 else "bb",
                round=k,
                terms="",
                adjacency="replace-one",
                sensitivity=20.0,
                std=50.0,
                count=1,
            )
        )
    return tmp_path / "mine"


def test_show_says_what_was_spent_when_for_whom_and_what_is_left(inside, place):
    said = json.loads(inside("ledger", "show", place, "--json").stdout)
    mu2 = 0.16
    assert said["epsilon_spent"] == pytest.approx(epsilon_of(math.sqrt(6 * mu2), 1e-5), rel=1e-9)
    left = mu_of(said["epsilon_left"], 1e-5) ** 2
    assert left + 6 * mu2 == pytest.approx(mu_of(10, 1e-5) ** 2, rel=1e-6)
    assert [(run["name"], run["releases"]) for run in said["runs"]] == [("aa", 4), ("bb", 2)]
    assert said["runs"][0]["epsilon"] == pytest.approx(epsilon_of(math.sqrt(4 * mu2), 1e-5))
    assert [day["name"] for day in said["days"]] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert said["days"][-1]["epsilon_after"] == said["epsilon_spent"]
    shown = inside("ledger", "show", place)
    assert shown.returncode == 0
    for text in ("aa", "bb", "2026-01-03  ██", "of 10 is spent, at delta 1e-05 (replace-one)"):
        assert text in shown.stdout


def test_verify_says_what_is_wrong(inside, place):
    good = inside("ledger", "verify", place)
    assert good.returncode == 0
    assert good.stdout.count("\n") == 1
    assert "7 lines, all as they were written" in good.stdout
    text = (place / NAME).read_text()
    (place / NAME).write_text(text.replace('"std": 50.0', '"std": 5000.0', 1))
    for command in ("verify", "show"):
        bad = inside("ledger", command, place)
        assert bad.returncode == 2
        assert "line 2 was changed" in bad.stderr
    (place / NAME).unlink()
    bad = inside("ledger", "verify", place)
    assert bad.returncode == 2
    assert "of 7 lines 7 are missing" in bad.stderr


def test_where_there_is_no_ledger(inside, tmp_path):
    bad = inside("ledger", "verify", tmp_path)
    assert bad.returncode == 2
    assert "there is no ledger" in bad.stderr


def test_a_ledger_from_another_machine_is_adopted(inside, place, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSOFIM_STATE", str(tmp_path / "new"))
    assert "its head is gone" in inside("ledger", "verify", place).stderr
    adopted, verified = inside("ledger", "adopt", place), inside("ledger", "verify", place)
    assert adopted.returncode == verified.returncode == 0
    assert adopted.stdout == verified.stdout
    assert f"epsilon {epsilon_of(math.sqrt(6 * 0.16), 1e-5):.4g} is spent" in adopted.stdout
