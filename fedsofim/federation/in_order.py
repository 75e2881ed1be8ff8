"""The releases of a round, combined as they come: in the order of the clients, and none is kept."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.federation.messages import Room
from fedsofim.strategies.aggregation import Combined

# Numbers of releases that may be under way or wait for others, and that one message may ask for.
ROOM, PORTION = 1 << 25, 1 << 19


def portions(
    holders: Mapping[int, Sequence[int]], shape: tuple[int, ...]
) -> list[tuple[int, list[int]]]:
    """Nodes and whom to ask them for, in the order of the clients; of large releases a few at once.

    >>> portions({7: [0, 2, 4], 8: [1, 3]}, (1000, 260))
    [(7, [0, 2]), (8, [1, 3]), (7, [4])]
    """
    most = max(1, PORTION // max(1, math.prod(shape)))
    parts = [
        (node, list(clients[k : k + most]))
        for node, clients in holders.items()
        for k in range(0, len(clients), most)
    ]
    return sorted(parts, key=lambda part: part[1][0])


class InOrder:
    """Releases that come in any order and are added up in that of the clients.

    A release is added when all before it are, or when it is known that none of the missing will
    come; until then it waits. So what waits is what stands behind the first client that is late.

    Args:
        clients: whose releases may come.
        combined: what becomes of them.
    """

    def __init__(self, clients: Sequence[int], combined: Combined) -> None:
        self._combined = combined
        self._missing = sorted(clients, reverse=True)  # the next one last
        self._early: dict[int, tuple[Array, int]] = {}
        self.waiting = 0  # numbers of releases that came early

    def put(self, client: int, release: Array, size: int) -> None:
        """Take a client's release, and the number of its records."""
        self._early[client] = release, size
        self.waiting += release.size
        self._go_on()

    def without(self, clients: Iterable[int]) -> None:
        """Count on these no more, as far as they have not come."""
        gone = set(clients) - self._early.keys()
        self._missing = [client for client in self._missing if client not in gone]
        self._go_on()

    def result(self) -> Array:
        """What all that came add up to."""
        self.without(self._missing)
        return self._combined.result()

    def room(self, asked: Sequence[Sequence[int]], shape: tuple[int, ...]) -> Room:
        """How much may be under way of releases of this shape, one message for each of `asked`."""
        sizes = [len(clients) * math.prod(shape) for clients in asked]
        return Room(sizes, lambda: self.waiting, ROOM)

    def _go_on(self) -> None:
        while self._missing and self._missing[-1] in self._early:
            release, size = self._early.pop(self._missing.pop())
            self.waiting -= release.size
            self._combined.add(release[None], np.array([size]))
