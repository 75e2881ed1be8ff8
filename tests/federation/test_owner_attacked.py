"""Attacks that once worked: on an owner's ledger, and on its time, memory and disk."""

import functools
import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from inprocess import InProcessGrid
from smalldata import CLASSES, FEATURES, write_records

from fedsofim.clients.gradient import Gradient
from fedsofim.clients.tree import Tree
from fedsofim.config.schema import parse
from fedsofim.federation import client_app
from fedsofim.federation.messages import HELLO, RELEASE, pack, unpack
from fedsofim.federation.node import Node
from fedsofim.privacy.book import RUNS
from fedsofim.privacy.ledger import NAME, Ledger, opened
from fedsofim.privacy.refusals import Refusal

Values = Callable[..., dict[str, Any]]
THETA = np.zeros((CLASSES, FEATURES + 1), np.float32)


@pytest.fixture
def owner(tmp_path: Path) -> dict[str, Any]:
    write_records(tmp_path / "records.npz", 60, seed=0)
    return {
        "partition-id": 0,
        "data": str(tmp_path / "records.npz"),
        "classes": CLASSES,
        "state": str(tmp_path / "mine"),
        "epsilon": 10.0,
        "delta": 1e-5,
    }


@pytest.fixture
def job(values: Values) -> Callable[..., str]:
    return lambda *more: parse(values("partition.clients=1", "strategy=fedgd", *more)).text


def ask(
    owner: dict[str, Any], job: str | bytes, k: float = 0, run: str = "ab", kind: str = RELEASE
) -> tuple[dict[str, Any], dict[str, Any]]:
    said = {"job": job, "run": run, "round": 0, "clients": [0]}
    grid = InProcessGrid([owner])
    theta = {"theta": THETA + np.float32(k)} if kind == RELEASE else {}
    grid.push_messages([Message(pack(theta, said), 1000, kind)])
    (reply,) = grid.pull_messages([])
    return unpack(reply.content)


def with_policy(owner: dict[str, Any], text: str) -> dict[str, Any]:
    file = Path(owner["state"]).with_name("policy.toml")
    file.write_text(text)
    return {**owner, "policy": str(file)}


def other_count(place: Path) -> None:
    text = (place / NAME).read_text()
    (place / NAME).write_text(re.sub(r'"count": [0-9.]+', '"count": 0', text))


def other_noise(place: Path) -> None:
    text = (place / NAME).read_text()
    (place / NAME).write_text(re.sub(r'"std": [0-9.]+', '"std": Infinity', text))


def shorter(place: Path) -> None:
    lines = (place / NAME).read_text().splitlines(keepends=True)
    (place / NAME).write_text("".join(lines[:2]))


def no_newline(place: Path) -> None:
    (place / NAME).write_bytes((place / NAME).read_bytes()[:-1])


def rolled_back(place: Path) -> None:
    shutil.rmtree(place)
    shutil.move(place.with_name("backup"), place)


@pytest.mark.parametrize("run", ["ab", "cd"])
@pytest.mark.parametrize(
    ("attack", "named"),
    [
        (other_count, "line 2 was changed"),
        (other_noise, "line 2 was changed"),
        (shorter, "of 5 lines 3 are missing"),
        (no_newline, "of 5 lines 1 are missing or cut short"),
        (lambda place: (place / NAME).unlink(), "of 5 lines 5 are missing"),
        (rolled_back, "of 5 lines 3 are missing"),
    ],
)
def test_a_changed_ledger_gives_nothing_more(
    attack: Callable[[Path], Any],
    named: str,
    run: str,
    owner: dict[str, Any],
    job: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = Path(owner["state"])
    for k in range(4):
        assert "release" in ask(owner, job(), k)[0]
        if k == 0:
            shutil.copytree(place, place.with_name("backup"))
    attack(place)
    for kind in (RELEASE, HELLO):
        arrays, said = ask(owner, job(), 9, run, kind)
        assert not arrays
        assert said == {"error": Refusal.ACCOUNT, "refused": True, "client": 0}
    assert f"Refused: {place / NAME}: {named}" in caplog.text


def test_another_directory_gives_nothing_more(
    owner: dict[str, Any], job: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does another file with the same records, in another format."""
    assert "release" in ask(owner, job())[0]
    with np.load(owner["data"]) as arrays:
        copy = {"x": arrays["train_x"].astype(float), "y": arrays["train_y"].astype(np.uint8)}
    np.savez_compressed(Path(owner["data"]).with_name("copy.npz"), **copy)
    for data in ("records.npz", "copy.npz"):
        elsewhere = {
            **owner,
            "state": owner["state"] + "2",
            "data": str(Path(owner["data"]).with_name(data)),
        }
        assert ask(elsewhere, job(), 1)[1]["error"] == Refusal.ACCOUNT
    assert caplog.text.count(f"have an account already, in {owner['state']}") == 2


def test_other_records_are_not_charged_to_this_ledger(
    owner: dict[str, Any], job: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    assert "release" in ask(owner, job())[0]
    write_records(Path(owner["data"]), 60, seed=1)
    assert ask(owner, job(), 1)[1]["error"] == Refusal.ACCOUNT
    assert "it is of other records" in caplog.text


@pytest.mark.parametrize("more", [["strategy=alone"], ["privacy.noise_multiplier=1e6"]])
def test_releases_at_epsilon_0_do_not_fill_the_disk(
    more: list[str], owner: dict[str, Any], values: Values, caplog: pytest.LogCaptureFixture
) -> None:
    strict = with_policy(owner, "free_releases_per_day = 40")
    job = parse(values("partition.clients=1", "strategy=fedgd", "rounds=1", *more)).text
    answers = [ask(strict, job, run=f"{k:x}") for k in range(42)]
    assert all("error" not in said for _, said in answers[:40])
    for _, said in answers[40:]:
        assert said["error"] == f"{Refusal.POLICY} (free_releases_per_day)"
    assert len(list(Path(owner["state"]).glob("run-*.npz"))) == RUNS
    assert "policy: free_releases_per_day is 41, the most is 40" in caplog.text


def test_a_forgotten_run_begins_and_is_charged_anew(
    owner: dict[str, Any], job: Callable[..., str]
) -> None:
    first, _ = ask(owner, job())
    for k in range(RUNS):
        ask(owner, job("privacy.noise_multiplier=1e5"), run=f"{k:x}f")
    again, said = ask(owner, job())
    assert said["charged"] == 1
    assert not np.array_equal(first["release"], again["release"])
    runs = [charge.run for charge in opened(Path(owner["state"])).charges()]
    assert runs.count("ab") == 2


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("it came to this")


@pytest.mark.parametrize(
    ("section", "change", "rule"),
    [
        ("partition", {"clients": 100_000_000}, "clients"),
        ("client", {"name": "steps", "lr": 0.1, "steps": 100_000}, "local_steps"),
        ("strategy", {"name": "fedgd", "lr": "x" * 70_000}, "job_bytes"),
    ],
)
def test_what_would_take_long_is_refused_before_it_is_built(
    section: str,
    change: dict[str, Any],
    rule: str,
    owner: dict[str, Any],
    job: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = json.loads(job())
    values[section] |= change
    values["participation"] = 0.5
    monkeypatch.setattr(client_app, "parse", forbidden)
    for kind in (HELLO, RELEASE):
        for text in (json.dumps(values), json.dumps(values).encode()):
            assert ask(owner, text, kind=kind)[1]["error"] == f"{Refusal.POLICY} ({rule})"


def test_the_cost_of_a_long_tree_is_not_counted_leaf_by_leaf(
    owner: dict[str, Any], job: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hello of two kilobytes once took 11 s: each of 10,000 rounds counted all before it."""
    values = json.loads(job("strategy=ftrl"))
    values["rounds"] = values["client"]["rounds"] = 10_000
    monkeypatch.setattr(Tree, "_closed", forbidden)
    assert "error" not in ask(owner, json.dumps(values), kind=HELLO)[1]


def test_a_large_message_is_refused_before_it_is_decoded(
    owner: dict[str, Any], job: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = with_policy(owner, f"message_bytes = {len(job()) + 200}")
    monkeypatch.setattr(client_app, "unpack", forbidden)
    assert ask(strict, job())[1]["error"] == f"{Refusal.POLICY} (message_bytes)"


def test_the_owners_own_rules_count(owner: dict[str, Any], job: Callable[..., str]) -> None:
    for rule, text in {
        "strategies": 'strategies = ["sofim"]',
        "clip": "clip = 9.5",
        "noise_multiplier": "noise_multiplier = 5.0",
        "rounds": "rounds = 3",
        "epsilon_per_run": "epsilon_per_run = 9.0",
    }.items():
        told = ask(with_policy(owner, text), job(), kind=HELLO)[1]["error"]
        assert told == f"{Refusal.POLICY} ({rule})"
    assert "error" not in ask(owner, job(), kind=HELLO)[1]


def test_a_policy_that_cannot_be_read_closes_the_client(
    owner: dict[str, Any], job: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    _, said = ask(with_policy(owner, "clip = = 3"), job())
    assert "policy.toml" not in said["error"]
    assert "policy.toml: not a readable TOML file" in caplog.text


def test_the_same_question_during_the_work_gets_the_same_release(
    owner: dict[str, Any], job: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And meanwhile the ledger is free for another run."""
    working, go_on, calls, real = threading.Event(), threading.Event(), [], Gradient.release

    def slow(program: Gradient, received: Any, *rest: Any) -> Any:
        if float(received["theta"][0, 0]) == 0:
            calls.append(1)
            working.set()
            assert go_on.wait(30)
        return real(program, received, *rest)

    monkeypatch.setattr(Gradient, "release", slow)
    answers: list[Any] = []
    text = job()
    threads = [threading.Thread(target=lambda: answers.append(ask(owner, text))) for _ in range(2)]
    threads[0].start()
    assert working.wait(30)
    threads[1].start()
    assert "release" in ask(owner, job(), 1, run="cd")[0]
    assert not answers
    go_on.set()
    for thread in threads:
        thread.join(30)
    (first, _), (second, _) = answers
    np.testing.assert_array_equal(first["release"], second["release"])
    assert len(calls) == 1
    assert len(opened(Path(owner["state"])).charges()) == 2


def test_who_is_at_work_may_be_asked_again(
    owner: dict[str, Any], job: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one server's long work would end a client's part in the runs of all others."""
    node = Node(**{key.replace("-", "_"): value for key, value in owner.items()})
    impatient = functools.partialmethod(Ledger.working, seconds=0.01)
    with node.ledger(node.records()).working("ab"), monkeypatch.context() as patch:
        patch.setattr(Ledger, "working", impatient)
        said = ask(owner, job())[1]
    assert said["error"] == Refusal.BUSY
    assert said["refused"] is False
    assert "error" not in ask(owner, job())[1]


def test_what_a_kill_left_half_written_goes(owner: dict[str, Any], job: Callable[..., str]) -> None:
    place = Path(owner["state"])
    ask(owner, job())
    left = [place / ".run-ab.npz.999", place / ".run-cd-setup.npz.7"]
    for file in left:
        file.write_bytes(b"PK")
    (place / ".records-0123").mkdir()
    ask(owner, job(), 1)
    assert [file.exists() for file in left] == [False, True]
    names = {key.replace("-", "_"): value for key, value in owner.items()}
    shutil.rmtree(next(place.glob("records-*")))
    Node(**names).start()
    assert not left[1].exists()
    assert not list(place.glob(".records-*"))


def test_control_characters_do_not_reach_the_owners_log(
    owner: dict[str, Any], job: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    values = json.loads(job())
    values["aggregation"] = "\x1b[2Jx\nRefused: nothing"
    ask(owner, json.dumps(values))
    assert "Refused: aggregation=?[2Jx?Refused: nothing" in caplog.text
