"""Flower's Ray backend with workers that may be lost.

Flower puts a worker that has died back among the idle ones, where it fails every message that comes
after. Here another takes its place, as far as the machines that are left have room, and the message
is given out again. A simulated client that is asked twice for a round sends the same release, and
the first one was never seen: nothing is spent by it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging import WARNING
from typing import Any

import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import ClientAppActor, pool_size_from_resources
from flwr.supercore import log
from ray.exceptions import ObjectLostError, RayActorError

from fedsofim.engines.cluster import keeping_sigterm

# What tells of a worker that is no more, or of its machine.
LOST = (RayActorError, ObjectLostError)
# How many workers one message may cost: one that takes too much memory would end them for ever.
TRIES = 4
# Seconds between two looks at what room there is, and to wait for the first that has any.
LOOK, PATIENCE = 1.0, 120.0


class Lost(Exception):  # noqa: N818 - a mistake of nobody's
    """There is no worker that could answer a message."""


class Crew:
    """The workers of a run, replaced when they die.

    Args:
        start: starts one.
        room: how many the machines that are there now have room for.
    """

    def __init__(self, start: Callable[[], Any], room: Callable[[], int]) -> None:
        self.start, self.room = start, room
        self.size = room()  # never more: so many messages are under way at once
        self._free = threading.Condition()
        self._idle: list[Any] = []
        self._coming: dict[Any, Any] = {}  # by what tells that they have begun
        self._busy = 0
        self._fill()

    def call(self, work: Callable[[Any], Any]) -> Any:
        """What `work` gives with one of the workers; with another, if that one dies.

        Raises:
            Lost: too many of them died over it, or there are none.
        """
        for _ in range(TRIES):
            worker = self._take()
            try:
                given = work(worker)
            except LOST as error:
                why = error
                log(WARNING, "A Ray worker was lost; another is asked (%s)", type(error).__name__)
                self._back(None)
            except BaseException:
                self._back(worker)
                raise
            else:
                self._back(worker)
                return given
        raise Lost(f"{TRIES} Ray workers were lost over it, one after another: {why}")

    def _take(self) -> Any:
        """A worker, as soon as one is free."""
        deadline = time.monotonic() + PATIENCE
        with self._free:
            while not self._idle:
                self._fill()
                if not self._idle:
                    if time.monotonic() > deadline and not self._busy:
                        raise Lost(f"no machine had room for a Ray worker for {PATIENCE:g} s")
                    self._free.wait(LOOK)
            self._busy += 1
            return self._idle.pop()

    def _back(self, worker: Any | None) -> None:
        """Take a worker back; after a death all who are idle must show that they live."""
        with self._free:
            self._busy -= 1
            if worker is not None:
                self._idle.append(worker)
            else:
                self._coming |= {other.__ray_ready__.remote(): other for other in self._idle}
                self._idle.clear()
            self._free.notify()

    def _fill(self) -> None:
        """Welcome who has begun, give up whom there is no room for, start whom there is."""
        begun: list[Any] = []
        if self._coming:
            names = list(self._coming)
            begun, _ = ray.wait(names, num_returns=len(names), timeout=LOOK / 10)
        for name in begun:
            worker = self._coming.pop(name)
            with suppress(*LOST):
                ray.get(name)
                self._idle.append(worker)
        room = max(0, min(self.size, self.room()) - self._busy - len(self._idle))
        while len(self._coming) > room:
            ray.kill(self._coming.popitem()[1])
        while len(self._coming) < room:
            worker = self.start()
            self._coming[worker.__ray_ready__.remote()] = worker

    def end(self) -> None:
        """End all of them."""
        with self._free:
            for worker in (*self._idle, *self._coming.values()):
                ray.kill(worker)
            self._idle.clear()
            self._coming.clear()


class SteadyBackend(raybackend.RayBackend):
    """Flower's backend on a crew of workers."""

    crew: Crew | None = None

    def __init__(self, backend_config: Any) -> None:
        with keeping_sigterm():
            super().__init__(backend_config)

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        """Start the workers."""
        self.app_fn = app_fn
        kind: Any = ClientAppActor
        self.crew = Crew(lambda: kind.options(**self.client_resources).remote(), self._room)

    def _room(self) -> int:
        try:
            return pool_size_from_resources(self.client_resources)
        except ValueError:  # not even for one, which a cluster that is being repaired may have
            return 0

    @property
    def num_workers(self) -> int:
        """How many messages can be under way at once."""
        return self.crew.size if self.crew else 0

    def is_worker_idle(self) -> bool:
        """Flower asks nowhere."""
        return True

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        """The reply to a message, and what its node remembers."""
        assert self.crew is not None
        node = str(context.node_config["partition-id"])
        _, reply, after = self.crew.call(
            lambda worker: ray.get(worker.run.remote(self.app_fn, message, node, context))
        )
        return reply, after

    def terminate(self) -> None:
        """End the workers, and Ray if it was started here."""
        if self.crew:
            self.crew.end()
        ray.shutdown()


@contextmanager
def steady() -> Iterator[None]:
    """Let Flower use this backend meanwhile; it has no option for another."""
    before = raybackend.RayBackend
    raybackend.RayBackend = SteadyBackend  # type: ignore[misc]
    try:
        yield
    finally:
        raybackend.RayBackend = before  # type: ignore[misc]
