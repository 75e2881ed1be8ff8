"""The owner's rules: each refuses what it is about, names itself, and comes before the work."""

import math
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedsofim.config.build import build
from fedsofim.core.errors import ConfigError
from fedsofim.privacy import ledger as ledger_module
from fedsofim.privacy.accounting import mu_of
from fedsofim.privacy.ledger import NAME, Budget, Charge, Ledger
from fedsofim.privacy.plan import Plan, Privacy
from fedsofim.privacy.policy import EXAMPLE, Policy
from fedsofim.privacy.refusals import Refusal, RefusedError

JOB: dict[str, Any] = {
    "rounds": 70,
    "partition": {"clients": 20},
    "client": {"name": "steps", "steps": 5},
    "strategy": {"name": "fedavg"},
    "transform": {"name": "none"},
}


def refused(rule: str) -> Any:
    return pytest.raises(RefusedError, match=f"^policy: {rule} ")


def test_the_example_says_the_defaults() -> None:
    given = tomllib.loads(EXAMPLE)
    assert build(Policy, given, "policy") == Policy()
    assert set(given) == {field.name for field in fields(Policy)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clipp = 1", r"policy.clipp: no such key; did you mean clip\?"),
        ("clip = 'a'", "policy.clip=a: must be a number"),
        ("clip = 0", "policy.clip=0.0: must be > 0"),
        ("clip = nan", "policy.clip=nan: must be > 0"),
        ("rounds = 1.5", "policy.rounds=1.5: must be a whole number"),
        ("rounds = 0", "policy.rounds=0: must be at least 1"),
        ("noise_multiplier = inf", "policy.noise_multiplier=inf: must be a finite"),
        ("strategies = 'sofim'", "policy.strategies=sofim: give a list of names"),
        ("transforms = [1]", "policy.transforms=.*: give a list of names"),
        ("free_releases_per_day = -1", "policy.free_releases_per_day=-1: must be >= 0"),
    ],
)
def test_mistakes_in_a_policy_are_told(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Policy, tomllib.loads(text), "policy")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"rounds": 10_001}, "rounds"),
        ({"rounds": math.nan}, "rounds"),
        ({"rounds": 10_000, "partition": {"clients": 10_000}}, "rounds"),
        ({"partition": {"clients": 1e8}}, "clients"),
        ({"partition": {"clients": 10**400}}, "clients"),
        ({"client": {"steps": 100_000}}, "local_steps"),
        ({"client": {"tune_steps": 1001}}, "local_steps"),
        ({"client": {"rounds": 10**9}}, "rounds"),
        ({"transform": {"name": "oracle"}}, "transforms"),
        ({"transform": {"name": ["oracle"]}}, "transforms"),
    ],
)
def test_a_job_is_bounded_before_it_is_built(change: dict[str, Any], rule: str) -> None:
    Policy().check_job(JOB)
    with refused(rule) as error:
        Policy().check_job(JOB | change)
    assert error.value.told == f"{Refusal.POLICY} ({rule})"


def test_only_named_strategies() -> None:
    only = Policy(strategies=("sofim", "fedgd"))
    only.check_job(JOB | {"strategy": {"name": "sofim"}})
    with refused("strategies"):
        only.check_job(JOB)


def test_sizes() -> None:
    Policy(message_bytes=10, job_bytes=5).check_size(10, 5)
    with refused("message_bytes"):
        Policy(message_bytes=10).check_size(11, 5)
    with refused("job_bytes"):
        Policy(job_bytes=5).check_size(10, 6)


def plan(**given: Any) -> Plan:
    privacy = Privacy(**{"epsilon": 1.0, "delta": 1e-5, "clip": 10.0, **given})
    return privacy.plan(releases=70, clients=3, aggregation="uniform")


def test_clip_and_noise() -> None:
    Policy(clip=10.0, noise_multiplier=62.0).check_plan(plan())
    with refused("clip"):
        Policy(clip=9.9).check_plan(plan())
    with refused("noise_multiplier"):
        Policy(noise_multiplier=63.0).check_plan(plan())
    with refused("noise_multiplier"):  # it would fill the disk for nothing
        Policy().check_plan(plan(noise_multiplier=1e30))
    bare = plan(epsilon=math.inf, clip=math.inf)
    Policy().check_plan(bare)  # which only a budget of inf covers
    with refused("noise_multiplier"):
        Policy(noise_multiplier=0.1).check_plan(bare)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    time = ["2026-01-01T10:00:00+00:00"]
    monkeypatch.setattr(ledger_module, "now", lambda: time[0])
    return time


def charge(ledger: Ledger, mu: float, run: str = "a") -> None:
    ledger.charge(
        Charge(
            run=run,
            round=0,
            terms="",
            adjacency="replace-one",
            sensitivity=mu,
            std=1.0,
            count=1,
        )
    )


def owned(place: Path, **rules: Any) -> Ledger:
    budget = Budget(epsilon=10.0, delta=1e-5)
    return Ledger(place / NAME, budget, data="d", policy=Policy(**rules))


def test_epsilon_per_run_and_per_day(tmp_path: Path, clock: list[str]) -> None:
    half = mu_of(1.0, 1e-5) / math.sqrt(2) * (1 - 1e-9)
    ledger = owned(tmp_path, epsilon_per_run=1.0)
    for run in ("a", "a", "b"):
        charge(ledger, half, run)
    with refused("epsilon_per_run"):
        charge(ledger, half, "a")
    ledger = owned(tmp_path, epsilon_per_day=1.0)
    with refused("epsilon_per_day"):
        charge(ledger, half, "c")
    clock[0] = "2026-01-02T00:00:00+00:00"
    charge(ledger, half, "c")
    charge(ledger, half, "c")
    clock[0] = "2025-12-31T00:00:00+00:00"  # a clock that is put back begins no new day
    with refused("epsilon_per_day"):
        charge(ledger, half, "c")


def test_releases_at_epsilon_0_are_counted(tmp_path: Path, clock: list[str]) -> None:
    ledger = owned(tmp_path, free_releases_per_day=3, releases_per_day=5)
    for k, mu in enumerate((0.0, 1e-30, 1e-7)):
        charge(ledger, mu, str(k))
    with refused("free_releases_per_day"):
        charge(ledger, 0.0)
    charge(ledger, 0.01)
    charge(ledger, 0.01)
    with refused("releases_per_day"):
        charge(ledger, 0.01)
    clock[0] = "2026-01-02T00:00:00+00:00"
    charge(ledger, 0.0)
