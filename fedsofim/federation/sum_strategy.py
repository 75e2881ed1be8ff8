"""A method whose server sees sums alone: the stages of a session as exchanges of one round.

Everything else is `RuleStrategy`'s. In a round the protocol's questions go out and its answers come
in, stage by stage, until there is a total; single releases never arrive. While a round is masked
and unmasked, the next one's keys are exchanged in the same messages.
"""

import secrets
from collections.abc import Iterable
from logging import INFO, WARNING
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.supercore import log

from fedsofim.clients.together import Crowd, round_mean, stage_mean
from fedsofim.core.arrays import Array
from fedsofim.federation import identities
from fedsofim.federation.identities import Identities
from fedsofim.federation.messages import RELEASE, encode, pack, parts_of, undecoded
from fedsofim.federation.questions import Questions
from fedsofim.federation.quorum import Quorum
from fedsofim.federation.replies import MEMORY, Asked, BadReplyError, Part
from fedsofim.federation.sessions import Question, pack_questions, session_of
from fedsofim.federation.strategy import RuleStrategy
from fedsofim.federation.terms import Request, Terms
from fedsofim.models.records import Records
from fedsofim.secagg.errors import LostError
from fedsofim.secagg.server import Requests, Server
from fedsofim.secagg.stages import Stage
from fedsofim.strategies.rule import Rule, broadcast, stage_broadcast


class _Sum(NamedTuple):
    """One sum in the making.

    Attributes:
        t: the round, or below 0 the stage.
        name: of the session.
        invited: who may take part.
        server: the protocol's.
        requests: of the current stage, by client.
    """

    t: int
    name: str
    invited: frozenset[int]
    server: Server
    requests: Requests

    def question(self, client: int, later: bool = False) -> Question:
        """What this client is to be asked now; empty words if there is nothing, or time for it."""
        due = client in self.server.waiting and not later
        return Question(self.t, self.name, self.requests[client] if due else b"")

    @property
    def answered(self) -> int:
        """How many have answered in this stage."""
        return len(self.requests.keys() - self.server.waiting - self.server.faults.keys())

    def close(self) -> "_Sum":
        """The next stage; without requests when the sum is there."""
        return self._replace(requests=self.server.close())


class SumStrategy(RuleStrategy):
    """A server rule that is shown totals.

    Args:
        rule: what to do with an aggregate.
        quorum: who is asked in a round, and whose answers make it.
        terms: on which clients share their noise.
        like: any records of the run's shape, for the grid of the sums; none is read.
        **more: as for `RuleStrategy`.
    """

    def __init__(
        self, rule: Rule, quorum: Quorum, *, terms: Terms, like: Records, **more: Any
    ) -> None:
        super().__init__(rule, quorum, **more)
        self.terms, self.like = terms, like
        self._ahead: _Sum | None = None
        self._came: dict[int, Part] = {}
        self._total = np.zeros(0, np.int64)
        self._lost = ""

    def _gather(self, grid: Grid, config: ConfigRecord, t: int) -> bool:
        """Take one session through its stages, and apply the rule to its total."""
        self._begin(t)
        self._came = {}
        if 0 in self._shape:  # clients of this method say nothing in a round
            self._apply()
            return True
        self._wait(grid, t, self.quorum.enough(t))
        try:
            self._now = self._ready(grid, t)
            self._ahead = self._open(grid, t + 1) if t + 1 < self.quorum.rounds else None
            while self._now.requests:
                if self._now.server.waiting:
                    self._exchange(grid, config)
                self._require_enough()
                self._now = self._now.close()
        except LostError as error:
            self._lost = str(error)
            return False
        result = self._now.server.result
        assert result is not None
        self._total = result.total
        self._parts = {i: self._came[i] for i in result.survivors}
        if t >= 0:
            self._apply()
        return True

    def _ready(self, grid: Grid, t: int) -> _Sum:
        """The session of round `t`: the one whose keys are exchanged already, if it still fits."""
        ahead, self._ahead = self._ahead, None
        if ahead and ahead.t == t and self._there(grid, t) <= ahead.invited:
            return ahead
        opened = self._open(grid, t)
        assert opened is not None
        return opened

    def _there(self, grid: Grid, t: int) -> frozenset[int]:
        willing = [i for i in self.quorum.wanted(t) if i not in self.refusals]
        here = self.roster.here(grid).intersection(willing)
        return frozenset(here & self._identities.clients if self.roster.deployed else here)

    def _open(self, grid: Grid, t: int) -> _Sum | None:
        """A new session for round `t`, and its invitations; `None` if nothing is added up then."""
        K, width = self.state.theta.shape
        shape = self.rule.release_shape(self.state.theta)
        length = self.stages[t].length(width - 1, K) if t < 0 else int(np.prod(shape))
        if not length:
            return None
        name, there = secrets.token_hex(16), self._there(grid, t)
        request, known = Request(self.quorum.run, t, self.quorum.job), self._identities
        session = session_of(known.terms(self.terms), request, name, length)
        server = Server(session, known.keys)
        return _Sum(t, name, there, server, server.open(there))

    @property
    def _identities(self) -> Identities:
        if self.roster.deployed:
            return identities.told(self.roster.members.values())
        return identities.simulated(self.quorum.run, self.quorum.clients)

    def _exchange(self, grid: Grid, config: ConfigRecord) -> None:
        """Ask the questions of one stage, and those who do not answer again."""
        quorum, t = self.quorum, self._t
        for attempt in range(1 + quorum.max_repeats):
            if attempt:
                stage = self._now.server.stage.name.lower()
                log(INFO, "Round %d: asking the missing clients again (%s)", t + 1, stage)
                self._wait(grid, t, quorum.enough(t))
            sent = list(self.configure_train(t + 1, self._arrays(), config, grid))
            came = self.roster.ask(grid, sent, quorum.timeout)
            self.aggregate_train(t + 1, came)
            if self._now.answered >= min(quorum.enough(t), len(self._now.requests)):
                return
            if quorum.on_missing == "skip" and t >= 0:
                return

    def _require_enough(self) -> None:
        """A round needs its quorum until all have added to it; then the threshold will do."""
        answered, enough = self._now.answered, self.quorum.enough(self._t)
        if self._now.server.stage <= Stage.MASK and answered < enough:
            stage = self._now.server.stage.name
            raise LostError(f"{stage}: only {answered} clients answered, {enough} are needed")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every client whose answer in this stage is missing, and for the next round's keys."""
        now, ahead, quorum = self._now, self._ahead, self.quorum
        if ahead and self._complete(ahead):
            self._ahead = ahead = ahead.close()
        early = ahead and ahead.server.stage < Stage.MASK
        masks = now.server.stage == Stage.MASK
        received = encode(self._told()) if masks else {}
        values = {**config, "job": quorum.job, "run": quorum.run, "round": now.t}
        self._sent = Questions()
        for node, clients in self.roster.holders(grid).items():
            asked = [i for i in clients if i in now.server.waiting]
            if not asked:
                continue
            memory = {MEMORY + name: rows[asked] for name, rows in self._remembered().items()}
            questions = self._questions(asked, ahead if early else None)
            said = {**values, "clients": asked, **pack_questions(questions)}
            message = Message(
                pack(memory, said, **received), node, RELEASE, group_id=str(server_round)
            )
            self._asks.update(asked if masks and now.t >= 0 else ())
            self._sent.append((message, asked))
        for i in now.server.waiting.difference(*(asked for _, asked in self._sent)):
            self._dropped[i] = "not connected"
        return [message for message, _ in self._sent]

    def _questions(self, asked: list[int], ahead: _Sum | None) -> list[list[Question]]:
        """What the clients of a node are asked, of this round and of the next.

        Shares are most of the work, and two exchanges are left for them: a node with many clients
        is asked for half of them in each.
        """
        now = self._now
        half = now.server.stage == Stage.SIGN and ahead and ahead.server.stage == Stage.SHARE
        later = set(asked[1::2]) if half else set()
        return [
            [now.question(i), *([ahead.question(i, i in later)] if ahead else [])] for i in asked
        ]

    def _complete(self, ahead: _Sum) -> bool:
        """Whether all keys of the next round are there, and shares of them may be handed out."""
        server = ahead.server
        first = server.session.recover and server.stage == Stage.ADVERT
        wanted = set(self.quorum.wanted(ahead.t)) - self.refusals.keys()
        return first and not server.waiting and not server.faults and wanted <= ahead.invited

    def _told(self) -> dict[str, Array]:
        """What clients are sent to add to the sum."""
        if self._t < 0:
            return stage_broadcast(self.stages[self._t], self.state)
        return broadcast(self.rule, self.state)

    def _remembered(self) -> dict[str, Array]:
        """What goes to and fro with the clients of a simulation, where they add to the sum."""
        return self.memory if self._t >= 0 and self._now.server.stage == Stage.MASK else {}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Give the answers of a stage to the protocol."""
        silent, answered = {i for _, clients in self._sent for i in clients}, set[str]()
        for reply in replies:
            name = reply.metadata.reply_to_message_id
            clients = None if name in answered else self._sent.asked_by(name)
            if clients is None:
                log(WARNING, "Dropped a reply to a question that was not asked")
                continue
            answered.add(name)
            silent -= set(clients)
            self._take(reply, clients)
        for i in silent:
            self._drop(i, BadReplyError(f"no reply within {self.quorum.timeout:g} s"))
        return None, MetricRecord({"replies": self._now.answered, "dropped": len(self._dropped)})

    def _take(self, reply: Message, clients: list[int]) -> None:
        """Hand the answers of a reply on, and name what is wrong with them."""
        parts = parts_of(reply, self._asked(clients))
        good = {i: part for i, part in parts.items() if isinstance(part, Part)}
        for i, part in parts.items():
            if isinstance(part, BadReplyError):
                self._drop(i, part)
        if not good:
            return
        sums = [self._now, *([self._ahead] if self._ahead else [])]
        given = undecoded(reply.content)[1].get("answers")
        told = given if isinstance(given, list) else []
        answers = [words if isinstance(words, bytes) else b"" for words in told]
        each = len(answers) // len(clients)
        masks = self._now.server.stage == Stage.MASK
        for i, part in good.items():
            k = clients.index(i)
            mine = answers[k * each : (k + 1) * each] if each else [b""]
            if why := self._now.server.take(i, mine[0]):
                self._drop(i, BadReplyError(why))
                continue
            for other, words in zip(sums[1:], mine[1:], strict=False):
                if words and i in other.server.waiting:
                    other.server.take(i, words)
            if masks:
                self._came[i] = part
            self._dropped.pop(i, None)
            self.roster.sizes.setdefault(i, part.size)
            self.charged[i] = part.charged

    def _asked(self, clients: list[int]) -> Asked:
        return super()._asked(clients)._replace(shape=None, memory=self._remembered())

    def _aggregate(self) -> Array:
        """The mean over all records of those who are in the total."""
        dtype = self.state.theta.dtype
        if 0 in self._shape:
            return np.zeros(self._shape, dtype)
        t, (program, plan, stages, _) = self._t, self.terms
        records = sum(part.size for part in self._parts.values())
        crowd = Crowd(len(self._parts), records, self.like)
        if t < 0:
            return stage_mean(stages[t], t, plan, self._total, crowd).astype(dtype)
        total, received = self._total.reshape(self._shape), broadcast(self.rule, self.state)
        return round_mean(program, received, plan, total, crowd).astype(dtype)

    def _shortage(self) -> str:
        return f"{self._lost} ({self._reasons()})" if self._reasons() else self._lost
