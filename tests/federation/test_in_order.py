"""Releases are added up as they come: the same bits in any order, and memory that does not grow."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inprocess import InProcessGrid

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.engines import ENGINES
from fedsofim.engines.flower import flower_engine
from fedsofim.federation import in_order
from fedsofim.federation.in_order import InOrder
from fedsofim.runs.experiment import begin, prepare
from fedsofim.strategies.aggregation import Combined, aggregate


class ShuffledGrid(InProcessGrid):
    """Replies come one at a time, the newest first."""

    def pull_messages(self, message_ids: Any) -> list[Any]:
        return [self._replies.pop()] if self._replies else []


@pytest.fixture
def wide(tmp_path: Path) -> Callable[[int], Any]:
    """Runs of one round on a model of 24,400 numbers, for so many clients."""
    rng, path = np.random.default_rng(0), tmp_path / "wide.npz"
    x = rng.normal(size=(800, 60)).astype(np.float32)
    labels = {"train_y": np.arange(800) % 400, "test_y": np.arange(400)}
    np.savez(path, train_x=x, test_x=x[:400], **labels)

    def made(clients: int, *more: str) -> Any:
        given = ["dataset=npz", f"dataset.path={path}", "partition=iid", "rounds=1"]
        given += [f"partition.clients={clients}", "strategy=fedgd", "settings=published", *more]
        return prepare(parse(compose([*given, "engine=flower"])))

    return made


def theta_of(experiment: Any, engine: Any) -> Any:
    return engine(experiment, begin(experiment), lambda *_, **__: False).server.theta


@pytest.mark.parametrize("how", ["uniform", "size", "median"])
@pytest.mark.parametrize("order", ["up", "down", "mixed"])
def test_any_order_has_the_bits_of_the_clients_order(rng: Any, how: Any, order: str) -> None:
    releases = rng.normal(size=(30, 4, 7)).astype(np.float32)
    sizes, came = rng.integers(1, 100, 30), {i for i in range(30) if i % 7 != 3}
    sequence = {"up": sorted(came), "down": sorted(came, reverse=True), "mixed": list(came)}
    if order == "mixed":
        rng.shuffle(sequence["mixed"])
    ours = InOrder(range(30), Combined(how))
    for i in sequence[order]:
        ours.put(i, releases[i], int(sizes[i]))
    kept = sorted(came)
    np.testing.assert_array_equal(ours.result(), aggregate(releases[kept], sizes[kept], how))
    assert ours.waiting == 0


def test_only_what_stands_behind_the_first_missing_client_waits() -> None:
    one, ours = np.ones(5, np.float32), InOrder(range(6), Combined("uniform"))
    for i in (0, 1, 3, 4):
        ours.put(i, one, 1)
    assert ours.waiting == 10
    ours.without([2, 3])  # 3 has come
    assert ours.waiting == 0
    np.testing.assert_array_equal(ours.result(), one)


@pytest.mark.parametrize("nodes", [2, 40])
def test_replies_that_come_in_another_order_give_the_local_run(
    wide: Any, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_order, "PORTION", 50_000)
    monkeypatch.setattr(in_order, "ROOM", 400_000)
    local, over = wide(40, "aggregation=size"), wide(40, "aggregation=size")
    grid = ShuffledGrid.simulated(nodes)
    np.testing.assert_array_equal(
        theta_of(local, ENGINES["local"]), theta_of(over, flower_engine(grid))
    )


def test_a_client_that_never_answers_holds_nobody_up(
    wide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_order, "ROOM", 0)  # few messages at a time
    monkeypatch.setattr(in_order, "PORTION", 0)
    rest = ["engine.min_clients=30", "engine.timeout=0.1", "engine.max_repeats=0"]
    experiment = wide(40, *rest)

    def without_the_first(question: Any, reply: Any) -> list[Any]:
        asked = question.content["config"].get("clients")
        return [] if asked == [0] else [reply]

    grid, told = ShuffledGrid.simulated(40, without_the_first), []
    flower_engine(grid)(experiment, begin(experiment), lambda *_, **notes: told.append(notes))
    assert told == [{"charged": 0.0, "dropped": ["client 0: no reply within 0.1 s"]}]


@pytest.mark.parametrize("nodes", [2, None], ids=["shared", "own"])
def test_memory_of_a_round_on_flower_does_not_grow_with_the_clients(
    wide: Any, nodes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_order, "PORTION", 50_000)  # two clients a message
    monkeypatch.setattr(in_order, "ROOM", 400_000)  # 16 releases
    peaks = {}
    for clients in (40, 400):
        experiment = wide(clients)
        grid, release = ShuffledGrid.simulated(nodes or clients), experiment.theta.nbytes
        theta_of(experiment, flower_engine(grid))  # what the client app keeps of a run is there now
        grid = ShuffledGrid.simulated(nodes or clients)
        tracemalloc.start()
        theta_of(experiment, flower_engine(grid))
        peaks[clients] = tracemalloc.get_traced_memory()[1] / release
        tracemalloc.stop()
    assert peaks[400] < peaks[40] + 30  # releases; all would be 400
