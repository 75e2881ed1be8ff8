"""Which node speaks for which client.

In a simulation any node can play any client, so the clients are dealt out to the nodes there are,
one each or many. In a deployment each node speaks for one client, its owner, and says which.
"""

import time
from collections.abc import Sequence
from logging import INFO, WARNING
from typing import Any, NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

from fedsofim.core.errors import ConfigError, require
from fedsofim.federation.messages import HELLO, exchange, pack, unpack
from fedsofim.privacy.refusals import RefusedError

# Seconds between looks for nodes, and before a node that could not take part is asked again.
LOOK, AGAIN = 0.5, 5.0


class Member(NamedTuple):
    """What a node said about itself.

    Attributes:
        owner: whether it holds data of its own, or plays clients of a simulation.
        client: for whom it speaks, if it is an owner.
        size: how many records it has; public.
        features: how many features a record has.
        classes: how many classes its owner says there are.
    """

    owner: bool
    client: int = -1
    size: int = 0
    features: int = 0
    classes: int = 0


class Roster:
    """The nodes of a run, as they come and go.

    Args:
        clients: how many clients the run has.
        job: the run's config, which nodes are shown before they join.
        run: the run's own name.
        features: how many features the model takes, if that is settled.
        classes: how many classes the model tells apart, if that is settled.
    """

    def __init__(
        self,
        *,
        clients: int,
        job: str,
        run: str = "",
        features: int | None = None,
        classes: int | None = None,
    ) -> None:
        self.clients, self.job, self.run = clients, job, run
        self.features, self.classes = features, classes
        self.members: dict[int, Member] = {}
        self.problems: dict[int, str] = {}
        self.refused: set[int] = set()
        self._asked: dict[int, float] = {}

    @property
    def deployed(self) -> bool:
        """Whether the nodes are owners of data."""
        return any(member.owner for member in self.members.values())

    def holders(self, grid: Grid, wanted: Sequence[int] | None = None) -> dict[int, list[int]]:
        """For whom, of the clients that are wanted, each node that is there now speaks."""
        wanted = range(self.clients) if wanted is None else wanted
        present = [node for node in sorted(grid.get_node_ids()) if node in self.members]
        if self.deployed:
            speaks = {node: [self.members[node].client] for node in present}
            return {node: [i] for node, (i,) in speaks.items() if i in wanted}
        dealt = {node: list(wanted[k :: len(present)]) for k, node in enumerate(present)}
        return {node: clients for node, clients in dealt.items() if clients}

    def wait(
        self, grid: Grid, least: int, seconds: float, wanted: Sequence[int] | None = None
    ) -> bool:
        """Wait until `least` clients are there; says whom it waits for, and whether they came.

        Args:
            grid: where nodes appear.
            least: how many clients are enough.
            seconds: how long to wait.
            wanted: the clients that count; all by default.
        """
        deadline, said = time.monotonic() + seconds, ""
        while True:
            self._greet(grid)
            if len(self.here(grid, wanted)) >= least:
                return True
            # An owner that refuses will not change its mind by being waited for.
            told = self.missing(grid, wanted)
            require(least <= self.clients - len(self.refused), f"can't go on without {told}")
            if told != said:
                log(INFO, "Waiting for %s", told)
                said = told
            if time.monotonic() > deadline:
                log(WARNING, "Waited %.0f s for %s", seconds, told)
                return False
            time.sleep(LOOK)

    def here(self, grid: Grid, wanted: Sequence[int] | None = None) -> set[int]:
        """The clients, of those that are wanted, that some node speaks for now."""
        return {i for clients in self.holders(grid, wanted).values() for i in clients}

    def missing(self, grid: Grid, wanted: Sequence[int] | None = None) -> str:
        """Who is not there, and what the nodes that could not join said."""
        here = self.here(grid, wanted)
        if not self.members and not self.problems:
            return "the first node to connect"
        names = ", ".join(str(i) for i in wanted or range(self.clients) if i not in here)
        reasons = "; ".join(sorted(set(self.problems.values())))
        return f"client {names} of {self.clients}" + (f" ({reasons})" if reasons else "")

    def _greet(self, grid: Grid) -> None:
        """Ask every new node who it is."""
        now, present = time.monotonic(), set(grid.get_node_ids())
        new = [
            node
            for node in sorted(present - set(self.members))
            if now - self._asked.get(node, -AGAIN) >= AGAIN
        ]
        self._asked |= dict.fromkeys(new, now)
        content = {"job": self.job, "run": self.run, "population": self.clients}
        sent = [Message(pack({}, content), node, HELLO) for node in new]
        replies = exchange(grid, sent, timeout=60)
        nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in sent}
        answers = {nodes.get(reply.metadata.reply_to_message_id): reply for reply in replies}
        for node in sorted(node for node in answers if node is not None):
            reply = answers[node]
            try:
                self.members[node] = self._admit(reply, present)
                self.problems.pop(node, None)
                self.refused.discard(node)
            except ConfigError as error:
                if isinstance(error, RefusedError):
                    self.refused.add(node)
                if self.problems.get(node) != str(error):
                    log(WARNING, "A node can't take part: %s", error)
                self.problems[node] = str(error)

    def _admit(self, reply: Message, present: set[int]) -> Member:
        """Check what a node says about itself."""
        if reply.has_error():
            raise ConfigError(f"it failed: {reply.error.reason}")
        try:
            values = unpack(reply.content)[1]
            if values.get("error"):
                kind = RefusedError if values.get("refused") else ConfigError
                raise kind(f"client {values.get('client')}: {values['error']}")
            member = _member(values)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"it answers in another language ({error})") from None
        if self.members and member.owner != self.deployed:
            raise ConfigError("simulated nodes and owners of data can't train together")
        if member.owner:
            self._check_owner(member, present)
        return member

    def _check_owner(self, member: Member, present: set[int]) -> None:
        i = member.client
        if not 0 <= i < self.clients:
            raise ConfigError(
                f"client {i}: there are {self.clients} clients, numbered from 0; "
                "set partition.clients, or the node's number"
            )
        for node, other in list(self.members.items()):
            if other.client == i and node in present:
                raise ConfigError(f"client {i}: another node speaks for it already")
            if other.client == i:
                del self.members[node]  # it left and came back as another node
        first = next(iter(self.members.values()), member)
        for what in ("features", "classes"):
            has, wanted = getattr(member, what), getattr(self, what) or getattr(first, what)
            if has != wanted:
                raise ConfigError(f"client {i}: its records have {has} {what}, not {wanted}")


def _member(values: dict[str, Any]) -> Member:
    if not values["owner"]:
        return Member(owner=False)
    return Member(True, *(int(values[key]) for key in Member._fields[1:]))
