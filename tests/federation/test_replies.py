"""Bad replies are dropped and named, never stop a run, and never change what is charged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from inprocess import InProcessGrid, Tamper

from fedsofim.core.errors import ConfigError
from fedsofim.engines.flower import flower_engine
from fedsofim.federation.messages import pack, unpack
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir

Values = Callable[..., dict[str, Any]]
Change = Callable[[dict[str, Any], dict[str, Any]], None]


def altered(reply: Message, question: Message, change: Change) -> Message:
    arrays, said = unpack(reply.content)
    change(arrays, said)
    return Message(pack(arrays, said), reply_to=question)


def in_round(t: int, client: int, act: Callable[[Message, Message], list[Message]]) -> Tamper:
    """Tamper with one client's replies in round `t` (from 0) only."""

    def tamper(question: Message, reply: Message) -> list[Message]:
        asked = unpack(question.content)[1]
        mine = asked.get("round") == t and asked.get("clients") == [client]
        return act(question, reply) if mine else [reply]

    return tamper


def changing(change: Change) -> Callable[[Message, Message], list[Message]]:
    return lambda question, reply: [altered(reply, question, change)]


def put(name: str, value: Callable[[Any], Any]) -> Change:
    def change(arrays: dict[str, Any], said: dict[str, Any]) -> None:
        target = arrays if name in arrays else said
        target[name] = value(target[name])

    return change


FAULTS = {
    "is not finite": changing(put("release", lambda r: r * np.nan)),
    "has dtype float64": changing(put("release", lambda r: r.astype(np.float64))),
    "has shape (1, 3, 6)": changing(put("release", lambda r: r[..., :-1])),
    "has no release": changing(lambda arrays, said: arrays.clear()),
    "answers round 0, not 1": changing(put("round", lambda t: t - 1)),
    "speaks for client [4], not [2]": changing(put("clients", lambda c: [4])),
    "has sizes [0]": changing(put("sizes", lambda s: [0])),
    "has sizes []": changing(put("sizes", lambda s: [])),
    "failed: out of memory": lambda question, reply: [
        Message(Error(code=2, reason="out of memory"), reply_to=question)
    ],
    "no reply within": lambda question, reply: [],
}


def place_of(given: dict[str, Any]) -> RunDir:
    return RunDir.open(Path(given["output"]["dir"]))


@pytest.mark.parametrize("reason", FAULTS)
def test_a_bad_reply_is_dropped_and_named(
    reason: str, values: Values, caplog: pytest.LogCaptureFixture
) -> None:
    grid = InProcessGrid.simulated(5, in_round(1, 2, FAULTS[reason]))
    given = values("engine=flower", "engine.min_clients=4", "engine.timeout=0.05")
    rows = session.run(given, engine=flower_engine(grid)).metrics()
    assert [row.get("dropped") for row in (rows[0], *rows[2:])] == [None] * 3
    (dropped,) = rows[1]["dropped"]
    assert dropped.startswith("client 2: ")
    assert reason in dropped
    assert reason in caplog.text
    clean = session.run(values("engine=flower"), engine=flower_engine(InProcessGrid.simulated(5)))
    assert [r["epsilon"] for r in rows] == [r["epsilon"] for r in clean.metrics()]
    assert rows[1]["gradient_norm"] != clean.metrics()[1]["gradient_norm"]
    assert rows[0]["gradient_norm"] == clean.metrics()[0]["gradient_norm"]


def test_the_mean_is_taken_over_the_good_replies(values: Values) -> None:
    """Dropping client 2 gives what a run without it gives: nobody's release counts twice."""
    grid = InProcessGrid.simulated(5, in_round(0, 2, FAULTS["is not finite"]))
    given = values("engine=flower", "engine.min_clients=4", "rounds=1", "strategy=fedgd")
    theta = np.load(session.run(given, engine=flower_engine(grid)).path / "model.npz")["theta"]
    releases = {}

    def watch(question: Message, reply: Message) -> list[Message]:
        arrays, said = unpack(reply.content)
        if "release" in arrays:
            releases[said["clients"][0]] = arrays["release"][0]
            releases["theta"] = unpack(question.content)[0]["theta"]
        return [reply]

    session.run(
        values("engine=flower", "rounds=1", "strategy=fedgd"),
        engine=flower_engine(InProcessGrid.simulated(5, watch)),
    )
    mean = np.mean([releases[i] for i in (0, 1, 3, 4)], axis=0)
    np.testing.assert_allclose(theta, releases["theta"] - 0.1 * mean, rtol=1e-5)


def test_a_second_reply_is_dropped_and_the_first_counts(values: Values) -> None:
    def twice(question: Message, reply: Message) -> list[Message]:
        return [reply, altered(reply, question, put("release", lambda r: r + 1))]

    grid = InProcessGrid.simulated(5, in_round(1, 2, twice))
    rows = session.run(values("engine=flower"), engine=flower_engine(grid)).metrics()
    clean = session.run(values("engine=flower"), engine=flower_engine(InProcessGrid.simulated(5)))
    assert rows[1]["dropped"] == ["client 2: replied twice; the first reply counts"]
    assert [r["accuracy"] for r in rows] == [r["accuracy"] for r in clean.metrics()]


def test_a_reply_to_no_question_of_this_round_is_dropped(values: Values) -> None:
    old: list[Message] = []

    def replay(question: Message, reply: Message) -> list[Message]:
        old.append(reply)
        return [*old[:1], reply]

    grid = InProcessGrid.simulated(5, replay)
    rows = session.run(values("engine=flower"), engine=flower_engine(grid)).metrics()
    clean = session.run(values("engine=flower"), engine=flower_engine(InProcessGrid.simulated(5)))
    assert [r["accuracy"] for r in rows] == [r["accuracy"] for r in clean.metrics()]


def test_repeat_asks_the_missing_alone_and_gives_the_same_run(values: Values) -> None:
    failures = iter([True, True, False])

    def flaky(question: Message, reply: Message) -> list[Message]:
        return [] if next(failures) else [reply]

    grid = InProcessGrid.simulated(5, in_round(2, 3, flaky))
    given = values("engine=flower", "engine.timeout=0.05")
    rows = session.run(given, engine=flower_engine(grid)).metrics()
    clean = session.run(values("engine=flower"), engine=flower_engine(InProcessGrid.simulated(5)))
    asked = [unpack(m.content)[1] for m in grid.asked]
    clients = [a["clients"] for a in asked if a.get("round") == 2]
    assert sorted(clients[:5]) == [[0], [1], [2], [3], [4]]
    assert clients[5:] == [[3], [3]]
    for row, same in zip(rows, clean.metrics(), strict=True):
        assert row["accuracy"] == same["accuracy"]
        assert row["epsilon"] == same["epsilon"]


def test_repeat_gives_up_in_one_line_and_the_run_can_be_resumed(values: Values) -> None:
    grid = InProcessGrid.simulated(5, in_round(2, 3, lambda q, r: []))
    given = values("engine=flower", "engine.timeout=0.02", "engine.max_repeats=1")
    with pytest.raises(ConfigError, match=r"round 3: 4 good replies, 5 are needed .*client 3"):
        session.run(given, engine=flower_engine(grid))
    place = place_of(given)
    assert len(place.metrics()) == 2
    done = session.resume(place.path, engine=flower_engine(InProcessGrid.simulated(2)))
    clean = session.run(values("engine=flower"), engine=flower_engine(InProcessGrid.simulated(5)))
    np.testing.assert_array_equal(
        np.load(done.path / "model.npz")["theta"], np.load(clean.path / "model.npz")["theta"]
    )


def test_skip_uses_the_round_up_without_a_step(values: Values) -> None:
    grid = InProcessGrid.simulated(5, in_round(1, 3, lambda q, r: []))
    given = values("engine=flower", "engine.timeout=0.02", "engine.on_missing=skip")
    rows = session.run(given, engine=flower_engine(grid)).metrics()
    clean = session.run(values("engine=flower"), engine=flower_engine(InProcessGrid.simulated(5)))
    assert rows[1]["skipped"]
    assert rows[1]["gradient_norm"] is None
    assert rows[1]["theta_norm"] == rows[0]["theta_norm"]
    assert rows[2]["theta_norm"] != rows[1]["theta_norm"]
    assert [r["epsilon"] for r in rows] == [r["epsilon"] for r in clean.metrics()]
    assert len(rows) == 4


def test_it_says_whom_it_waits_for_and_gives_up(
    values: Values, caplog: pytest.LogCaptureFixture
) -> None:
    grid = InProcessGrid([])
    with pytest.raises(ConfigError, match=r"waited 0.1 s in vain for the first node"):
        session.run(values("engine=flower", "engine.wait=0.1"), engine=flower_engine(grid))
    assert "Waiting for the first node to connect" in caplog.text
