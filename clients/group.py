"""Clients that are asked together, and what their records are seen through."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.models.crowd import Many
from fedsofim.models.head import Examples, examples_of
from fedsofim.models.records import Factors, Records


class Client(NamedTuple):
    """One client: who it is and what it holds."""

    id: int
    data: Records


class Group(list[Client]):
    """Clients that are asked together, round after round: what holds for all is found out once."""

    @cached_property
    def ids(self) -> Array:
        """Who they are, `(n,)`."""
        return np.array([client.id for client in self], np.uint32)

    @cached_property
    def largest(self) -> int:
        """How many records the largest of them has."""
        return max((D.size for _, D in self), default=0)

    @cached_property
    def heads_data(self) -> Many | None:
        """Their records if all are examples for a head, whose sums are taken together."""
        data = Many(D for _, D in self if isinstance(D, Examples))
        return data if len(data) == len(self) else None

    def renew(self, clients: Sequence[Client]) -> None:
        """Take these in their place: the same clients, under another transform."""
        self[:] = clients
        if self.heads_data is not None:
            self.heads_data.renew([examples_of(D) for _, D in self])


def grouped(clients: Sequence[Client]) -> Group:
    """The clients as a group: themselves, if they are one."""
    return clients if isinstance(clients, Group) else Group(clients)


def require_records(group: Group) -> None:
    """Refuse clients without records."""
    if (data := group.heads_data) is None or not data.sizes.all():
        for i, D in group:
            require(D.size > 0, f"client {i} holds no records, and so has no mean to release")


def transformed(
    clients: Sequence[Client], received: Mapping[str, Array], exact: bool = True
) -> list[Client]:
    """The clients, their records and gradients under what the server broadcast, if it did.

    The clip comes after it, so whatever the server sends, privacy is what it was.

    Args:
        clients: who they are.
        received: what the server broadcast, by name.
        exact: whether a mapped record must not depend on others to the last bit, as where exact
            noise is added.
    """
    P = received.get("P")
    if P is not None or any(getattr(c.data, "map", None) is not None for c in clients):
        clients = [c._replace(data=examples_of(c.data).through(P, exact)) for c in clients]
    if "U_A" not in received:
        return list(clients)
    factors = Factors(received["U_G"], received["U_A"])
    return [Client(i, D.with_transform(factors)) for i, D in clients]


def mapped(clients: Sequence[Client], shared: Any) -> list[Client]:
    """The clients of a simulation, under the map that all of them share, if there is one."""
    P = getattr(shared, "P", None)
    return transformed(clients, {} if P is None else {"P": P}, exact=False)
