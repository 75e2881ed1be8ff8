"""Which node speaks for which client.

In a simulation any node can play any client, so the clients are dealt out to the nodes there are,
one each or many. In a deployment each node speaks for one client, its owner, and says which. What
owners say about themselves is checked, and they are held to it for the whole run.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from logging import INFO, WARNING
from typing import Protocol

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

from fedsofim.core.errors import require
from fedsofim.federation.decoding import shown
from fedsofim.federation.members import Member, NodeError, read_member
from fedsofim.federation.messages import HELLO, Room, exchange, pack, replies_to, undecoded

# Seconds between looks for nodes, and before a node that could not take part is asked again.
LOOK, AGAIN = 0.5, 5.0
# Seconds that a node may take to say who it is, and how many nodes are asked at the same time: what
# one SuperLink can bring to nodes and back meanwhile.
GREETING, GREETED = 60.0, 128
# How many of the clients that are not there are named.
NAMED = 20


class Nodes(Protocol):
    """Who is there: a grid, or what it said a moment ago."""

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        ...


class Look:
    """The nodes of a grid, asked for once: a SuperLink tells all that it knows about each of them.

    Args:
        grid: where they are.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid, self._nodes = grid, list(grid.get_node_ids())

    def get_node_ids(self) -> list[int]:
        """The nodes that were connected at that time."""
        return self._nodes


class Roster:
    """The nodes of a run, as they come and go.

    Args:
        clients: how many clients the run has.
        job: the run's config, which nodes are shown before they join.
        run: the run's own name.
        owners_only: whether the nodes must be owners of data.
        sizes: how many records each client said it has, where it said so before.
        names: what the classes are called, where that was agreed on.
        max_records: the most records that an owner is believed to have.
        max_features: the most features that an owner is believed to have.
        at_once: how many nodes are asked at the same time; all by default.
    """

    def __init__(
        self,
        *,
        clients: int,
        job: str,
        run: str = "",
        owners_only: bool = False,
        sizes: Mapping[int, int] | None = None,
        names: Sequence[str] = (),
        max_records: int = 10_000_000,
        max_features: int = 100_000,
        at_once: int | None = None,
    ) -> None:
        self.clients, self.job, self.run = clients, job, run
        self.owners_only, self.at_once = owners_only, at_once
        self.max_records, self.max_features = max_records, max_features
        self.sizes = dict(sizes or {})
        # What the model takes and tells apart, when that is settled.
        self.features: int | None = None
        self.classes: int | None = None
        self.names = "|".join(names)  # of the classes, with bars between
        self.members: dict[int, Member] = {}
        self.problems: dict[int, str] = {}
        self.refused: dict[int, int] = {}
        self._next: dict[int, float] = {}  # when to ask a node again
        self._silent: dict[int, float] = {}  # and when, if it did not answer and is not needed
        self._patience: dict[int, float] = {}

    @property
    def deployed(self) -> bool:
        """Whether the nodes are owners of data."""
        return self.owners_only or any(member.owner for member in self.members.values())

    def holders(self, grid: Nodes, wanted: Sequence[int] | None = None) -> dict[int, list[int]]:
        """For whom, of the clients that are wanted, each node that is there now speaks."""
        wanted = range(self.clients) if wanted is None else wanted
        present = [node for node in sorted(grid.get_node_ids()) if node in self.members]
        if self.deployed:
            fitting = self._fitting()
            speaks = {node: fitting[node].client for node in present if node in fitting}
            chosen = set(wanted)
            return {node: [i] for node, i in speaks.items() if i in chosen}
        dealt = {node: list(wanted[k :: len(present)]) for k, node in enumerate(present)}
        return {node: clients for node, clients in dealt.items() if clients}

    def shape(self) -> tuple[int, int]:
        """Features and classes of the model: as settled, else what most owners say."""
        owners = [member for member in self.members.values() if member.owner]
        said = Counter((owner.features, owner.classes) for owner in owners)
        features, classes = said.most_common(1)[0][0] if said else (0, 0)
        return self.features or features, self.classes or classes

    def agreed(self) -> str:
        """What the classes are called, with bars between: as settled, else what most say."""
        said = Counter(m.names for m in self.members.values() if m.owner and m.names)
        return self.names or (said.most_common(1)[0][0] if said else "")

    def _fitting(self) -> dict[int, Member]:
        """The owners whose records fit the model; the others are told apart in `missing`."""
        right = (*self.shape(), self.agreed())
        return {node: member for node, member in self.members.items() if member.fits(*right)}

    def wait(
        self,
        grid: Grid,
        least: int,
        seconds: float,
        wanted: Sequence[int] | None = None,
        *,
        enough: int | None = None,
    ) -> bool:
        """Wait for `least` clients; says whom it waits for, and whether enough came.

        Args:
            grid: where nodes appear.
            least: how many clients to wait for.
            seconds: how long to wait.
            wanted: the clients that count; all by default.
            enough: how many do when the time is up; `least` by default.
        """
        deadline, said = time.monotonic() + seconds, ""
        enough = least if enough is None else enough
        while True:
            look = Look(grid)
            look = self._greet(look, needed=len(self.here(look, wanted)) < least)
            here, told = len(self.here(look, wanted)), self.missing(look, wanted)
            # An owner that refuses will not change its mind by being waited for.
            willing = self.clients - len(self._refusing(look))
            if here >= min(least, max(enough, willing)):
                return True
            require(enough <= willing, f"can't go on without {told}")
            if told != said:
                log(INFO, "Waiting for %s", told)
                said = told
            if time.monotonic() > deadline:
                log(WARNING, "Waited %.0f s for %s", seconds, told)
                return here >= enough
            time.sleep(LOOK)

    def ask(
        self, grid: Grid, messages: Sequence[Message], seconds: float, room: Room | None = None
    ) -> Iterator[Message]:
        """Send messages, and give the replies that come in time; owners' are fetched singly."""
        singly, at_once = self.deployed, self.at_once
        return replies_to(grid, messages, seconds, singly=singly, room=room, at_once=at_once)

    def here(self, grid: Nodes, wanted: Sequence[int] | None = None) -> set[int]:
        """The clients, of those that are wanted, that some node speaks for now."""
        return {i for clients in self.holders(grid, wanted).values() for i in clients}

    def _refusing(self, grid: Nodes) -> set[int]:
        """The clients whose owners are there and refuse, one for each node at most.

        Else a client that leaves, and comes back as other nodes, could refuse for everyone.
        """
        present = set(grid.get_node_ids())
        return {i for node, i in self.refused.items() if node in present} - self.here(grid)

    def missing(self, grid: Nodes, wanted: Sequence[int] | None = None) -> str:
        """Who is not there, and what the nodes that could not join said."""
        here = self.here(grid, wanted)
        if not self.members and not self.problems:
            return "the first node to connect"
        lacking = [str(i) for i in wanted or range(self.clients) if i not in here]
        names = ", ".join(lacking[:NAMED])
        names += f" and {len(lacking) - NAMED} others" if len(lacking) > NAMED else ""
        reasons = "; ".join(sorted({*self.problems.values(), *self._misfits()}))
        return f"client {names} of {self.clients}" + (f" ({reasons})" if reasons else "")

    def _misfits(self) -> list[str]:
        """What is wrong with the records of owners that are there and don't fit the model."""
        if not self.deployed:
            return []
        right, fitting = (*self.shape(), self.agreed()), self._fitting()
        misfits = (m for node, m in self.members.items() if m.owner and node not in fitting)
        return [line for member in misfits for line in member.misfit(*right)]

    def _greet(self, look: Look, *, needed: bool = True) -> Look:
        """Ask every new node who it is; a silent one ever less often, unless more are needed.

        Otherwise a node that never answers could hold up every round. Returns who is there then.
        """
        now, present = time.monotonic(), set(look.get_node_ids())
        due = self._next if needed else {**self._next, **self._silent}
        self.problems = {n: why for n, why in self.problems.items() if n in present}
        new = sorted(n for n in present - set(self.members) if now >= due.get(n, now))
        content = {"job": self.job, "run": self.run, "population": self.clients}
        content["classes"] = self.names
        sent = [Message(pack({}, content), node, HELLO) for node in new]
        at_once = min(self.at_once or GREETED, GREETED)
        replies = exchange(look.grid, sent, GREETING, singly=True, at_once=at_once)
        nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in sent}
        answers = {nodes.get(reply.metadata.reply_to_message_id): reply for reply in replies}
        speakers = {member.client: node for node, member in self.members.items() if member.owner}
        for node in new:
            self._next[node] = time.monotonic() + AGAIN
            try:
                self.members[node] = member = self._admit(answers.get(node), present, speakers)
                speakers |= {member.client: node} if member.owner else {}
                self.problems.pop(node, None)
                self.refused.pop(node, None)
            except NodeError as error:
                self._turn_away(node, error)
        for node in set(new) - answers.keys():
            self._patience[node] = 4 * self._patience.get(node, AGAIN)
            self._silent[node] = self._next[node] + self._patience[node]
        self._part_owners()
        return Look(look.grid) if sent else look

    def _turn_away(self, node: int, why: NodeError) -> None:
        if why.refuses is not None:
            self.refused[node] = why.refuses
        if self.problems.get(node) != str(why):
            log(WARNING, "A node can't take part: %s", why)
        self.problems[node] = str(why)

    def _part_owners(self) -> None:
        """Refuse nodes that play clients of a simulation where another node owns data."""
        players = [node for node, member in self.members.items() if not member.owner]
        for node in players if self.deployed else []:
            del self.members[node]
            self._turn_away(
                node, NodeError("simulated nodes and owners of data can't train together")
            )

    def _admit(
        self, reply: Message | None, present: set[int], speakers: Mapping[int, int]
    ) -> Member:
        """Check what a node says about itself, whatever that is."""
        if reply is None:
            raise NodeError(f"it did not say who it is within {GREETING:g} s")
        try:
            if reply.has_error():
                raise NodeError(f"it failed: {shown(reply.error.reason)}")
            values = undecoded(reply.content)[1]
            if values.get("error"):
                i, refused = values.get("client"), values.get("refused") is True
                known = refused and type(i) is int and 0 <= i < self.clients
                told = f"client {shown(i)}: {shown(values['error'])}"
                raise NodeError(told, refuses=i if known else None)
            member = read_member(values, self.clients, self.max_records, self.max_features)
            if member.owner:
                self._check_owner(member, present, speakers)
            return member
        except NodeError:
            raise
        except Exception as error:
            raise NodeError(f"it answers in another language ({type(error).__name__})") from None

    def _check_owner(self, member: Member, present: set[int], speakers: Mapping[int, int]) -> None:
        """Refuse a second node for a client, and a node that changes its client."""
        i = member.client
        other = speakers.get(i)
        if other is not None and other in present:
            raise NodeError(f"client {i}: another node speaks for it already")
        if other is not None:
            self.members.pop(other, None)  # it left and came back as another node
        known = self.sizes.setdefault(i, member.size)
        if member.size != known:
            raise NodeError(f"client {i}: has {member.size} records, and said {known} before")
