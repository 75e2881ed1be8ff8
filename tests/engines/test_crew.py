"""Workers that die over a message, without Ray: who is asked next, and when it is given up."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from fedsofim.engines import steady


class Worker:
    """A worker that says whether it has begun, and lives."""

    def __init__(self) -> None:
        self.alive = True
        self.__ray_ready__ = SimpleNamespace(remote=lambda: self)

    def work(self, *, dies: bool = False) -> str:
        self.alive = self.alive and not dies
        if not self.alive:
            raise RayActorError
        return "done"


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """How many workers there is room for, and all that were started."""
    made = SimpleNamespace(room=2, workers=[])

    def start() -> Worker:
        made.workers.append(Worker())
        return made.workers[-1]

    def get(worker: Worker) -> None:
        if not worker.alive:
            raise RayActorError

    fake: Any = SimpleNamespace(
        wait=lambda names, **_: (names, []),
        get=get,
        kill=lambda worker: setattr(worker, "alive", False),
    )
    monkeypatch.setattr(steady, "ray", fake)
    monkeypatch.setattr(steady, "LOOK", 0.01)
    monkeypatch.setattr(steady, "PATIENCE", 0.1)
    made.crew = steady.Crew(start, lambda: made.room)
    return made


def test_workers_that_live_are_used_again(machines: SimpleNamespace) -> None:
    assert [machines.crew.call(Worker.work) for _ in range(10)] == ["done"] * 10
    assert len(machines.workers) == 2


def test_one_that_dies_is_replaced_and_its_message_given_out_again(
    machines: SimpleNamespace,
) -> None:
    asked: list[Worker] = []

    def work(worker: Worker) -> str:
        asked.append(worker)
        return worker.work(dies=len(asked) == 1)

    assert machines.crew.call(work) == "done"
    assert asked[0] is not asked[1]
    assert machines.crew.call(Worker.work) == "done"
    machines.crew.call(Worker.work)
    assert sum(worker.alive for worker in machines.workers) == 2


def test_a_lost_machine_takes_its_idle_workers_with_it(machines: SimpleNamespace) -> None:
    machines.crew.call(Worker.work)
    for worker in machines.workers:
        worker.alive = False
    machines.room = 1
    assert machines.crew.call(Worker.work) == "done"
    assert [worker.alive for worker in machines.workers] == [False, False, True]


def test_a_message_that_ends_every_worker_is_given_up(machines: SimpleNamespace) -> None:
    with pytest.raises(steady.Lost, match="4 Ray workers were lost over it"):
        machines.crew.call(lambda worker: worker.work(dies=True))
    assert machines.crew.call(Worker.work) == "done"


def test_what_a_worker_says_is_no_loss(machines: SimpleNamespace) -> None:
    def refuse(worker: Worker) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        machines.crew.call(refuse)
    machines.crew.call(Worker.work)
    assert len(machines.workers) == 2


def test_without_room_for_anybody_it_ends(machines: SimpleNamespace) -> None:
    for worker in machines.workers:
        worker.alive = False
    machines.room = 0
    with pytest.raises(steady.Lost, match="no machine had room"):
        machines.crew.call(Worker.work)


def test_nobody_is_left(machines: SimpleNamespace) -> None:
    machines.crew.call(Worker.work)
    machines.crew.end()
    assert not any(worker.alive for worker in machines.workers)
