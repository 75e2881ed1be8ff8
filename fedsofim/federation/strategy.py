"""Every method as a Flower strategy: messages in, arrays out, one rule in between."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.federation.in_order import InOrder, portions
from fedsofim.federation.messages import RELEASE, encode, pack, parts_of
from fedsofim.federation.questions import Questions
from fedsofim.federation.quorum import Quorum
from fedsofim.federation.replies import MEMORY, Asked, BadReplyError, Part, listed, summed_up
from fedsofim.federation.roster import Roster
from fedsofim.federation.unscored import Unscored
from fedsofim.strategies.aggregation import Combined
from fedsofim.strategies.rule import Rule, ServerState, broadcast, stage_broadcast, start, step
from fedsofim.strategies.stage import Stage, StageNoise, stage_std

# Called after every round with the strategy, the aggregate or None, and who was dropped.
OnRound = Callable[["RuleStrategy", Array | None, list[str]], bool]


class RuleStrategy(Unscored):
    """A server rule on Flower's current API.

    It waits for the clients, asks them for their releases, drops what can't be used and says so,
    and applies the rule to the rest, sorted by client: for the same replies the parameters are
    those of every other engine, bit for bit. A client that was asked for the same round twice
    sends the same release, so repeating a round costs no privacy.

    Args:
        rule: what to do with an aggregate.
        quorum: who is asked in a round, and whose answers make it.
        state: where to begin; by default `start` makes the state from its initial arrays.
        memory: what the clients of a simulation remember, stacked, by name.
        roster: the nodes, if they were met already.
        on_round: called after every round; returns whether to stop.
        refresh: applied to the state after every round, to renew what all clients receive.
        stages: what comes before the first round; by default what the rule needs.
        plan: the noise of the stages, which some of them reckon with.
    """

    def __init__(
        self,
        rule: Rule,
        quorum: Quorum,
        *,
        state: ServerState | None = None,
        memory: Mapping[str, Array] | None = None,
        roster: Roster | None = None,
        on_round: OnRound | None = None,
        refresh: Callable[[ServerState], ServerState] = lambda state: state,
        stages: Sequence[Stage] | None = None,
        plan: StageNoise | None = None,
    ) -> None:
        self.stages, self.plan = rule.stages if stages is None else tuple(stages), plan
        self.rule, self.quorum, self.on_round, self.refresh = rule, quorum, on_round, refresh
        self.memory = {name: rows.copy() for name, rows in (memory or {}).items()}
        self.roster = roster or Roster(clients=quorum.clients, job=quorum.job, run=quorum.run)
        self.refusals: dict[int, str] = {}
        self.charged: dict[int, float] = {}  # by each owner itself, in releases of a clipped sum
        self._met = roster is not None
        self._asks: Counter[int] = Counter()
        self._began = max(0, state.t) if state else 0
        self._state, self._t = state, 0
        self._shape: tuple[int, ...] = ()
        self._begin(0)
        self._sent = Questions()

    @property
    def state(self) -> ServerState:
        """The parameters, the rule's buffers and the rounds done."""
        require(self._state is not None, "the strategy has not been started")
        assert self._state is not None
        return self._state

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float = 0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train over `grid` from `initial_arrays`, which hold theta alone, to the last round.

        The rounds and the time-out are those of the quorum, for which the noise was made.
        """
        quorum = self.quorum
        require(
            num_rounds in (0, quorum.rounds),
            f"num_rounds={num_rounds}: the noise is made for {quorum.rounds} rounds",
        )
        if self._state is None:
            self._state = self._initial(initial_arrays)
        self.summary()
        if self.state.t <= 0 and not self._met:
            self._wait(grid, -1, quorum.clients)  # the whole population, before anything begins
        result = Result()
        while self.state.t < 0:
            first = self._stage(grid, train_config or ConfigRecord())
            if self.on_round and self.on_round(self, first, listed(self._dropped)):
                return result
        while self.state.t < quorum.rounds:
            t = self.state.t
            G = self._round(grid, train_config or ConfigRecord())
            result.arrays = self._arrays()
            if evaluate_fn and (scores := evaluate_fn(t + 1, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[t + 1] = scores
            if self.on_round and self.on_round(self, G, listed(self._dropped)):
                break
        return result

    def _initial(self, arrays: ArrayRecord | None) -> ServerState:
        require(len(arrays or ()) == 1, "initial_arrays: must hold theta alone")
        (theta,) = (arrays or ArrayRecord()).values()
        return start(self.rule, theta.numpy(), len(self.stages))

    def _stage(self, grid: Grid, config: ConfigRecord) -> Array:
        """One release before the first round, folded into the state."""
        t = self.state.t
        stage = self.stages[t]
        K, width = self.state.theta.shape
        self._shape = (stage.length(width - 1, K),)
        require(self._gather(grid, config, t), f"before round 1: {self._shortage()}")
        G, sizes = self._aggregate(), np.array([self._parts[i].size for i in sorted(self._parts)])
        std = self.plan and stage_std(stage, t, self.plan, sizes, self.quorum.aggregation)
        self._state = stage.fold(self.state, G, std or 0.0)._replace(t=t + 1)
        return G

    def _round(self, grid: Grid, config: ConfigRecord) -> Array | None:
        """One round: the aggregate that was applied, or `None` if the round was skipped."""
        t = self.state.t
        self._shape = self.rule.release_shape(self.state.theta)
        if self._gather(grid, config, t):
            return self._G
        told = f"round {t + 1}: {self._shortage()}"
        require(self.quorum.on_missing == "skip", told)
        log(WARNING, "Skipping %s", told)
        # The releases were made and stay charged, so the round is used up without a step.
        self._state = self.refresh(self.state._replace(t=t + 1))
        return None

    def _gather(self, grid: Grid, config: ConfigRecord, t: int) -> bool:
        """Ask until there are enough good replies, as often as the quorum allows."""
        quorum = self.quorum
        self._begin(t)
        for attempt in range(1 + quorum.max_repeats):
            if attempt:
                log(INFO, "Round %d: asking the missing clients again", t + 1)
            self._wait(grid, t, quorum.enough(t))
            self._sum.without(self.refusals)
            sent = list(self.configure_train(t + 1, self._arrays(), config, grid))
            room = self._sum.room([asked for _, asked in self._sent], self._shape)
            came = self.roster.ask(grid, sent, quorum.timeout, room)
            self.aggregate_train(t + 1, came)
            if len(self._parts) >= quorum.enough(t):
                return True
            if quorum.on_missing == "skip" and t >= 0:
                break
        return False

    def _begin(self, t: int) -> None:
        """Forget the last round: nobody has replied yet."""
        quorum = self.quorum
        self._t, self._dropped = t, dict[int, str]()
        self._parts: dict[int, Part] = {}  # without their releases
        combined = Combined(quorum.aggregation, quorum.malicious_fraction)
        self._sum = InOrder(quorum.wanted(t), combined)

    def _wait(self, grid: Grid, t: int, least: int) -> None:
        """Wait for the clients of round `t`; without enough of them it can only be skipped."""
        quorum = self.quorum
        wanted = [i for i in quorum.wanted(t) if i not in self.refusals]
        require(len(wanted) >= quorum.enough(t), f"too many clients refuse ({self._reasons()})")
        least, enough = min(least, len(wanted)), quorum.enough(t)
        came = self.roster.wait(grid, least, quorum.wait, wanted, enough=enough)
        require(
            came or (quorum.on_missing == "skip" and t > 0),
            f"waited {quorum.wait:g} s in vain for {self.roster.missing(grid, wanted)}",
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every client whose release of this round is missing for it."""
        state, quorum = self.state, self.quorum
        stage = self.stages[self._t] if self._t < 0 else None
        received = encode(stage_broadcast(stage, state) if stage else broadcast(self.rule, state))
        values = {**config, "job": quorum.job, "run": quorum.run, "round": self._t}
        self._sent = Questions()
        # Owners know who they are, and so one content, stored once, serves for all of them.
        named, known = not self.roster.deployed, {*self._parts, *self.refusals}
        missing = [i for i in quorum.wanted(self._t) if i not in known]
        for node, asked in portions(self.roster.holders(grid, missing), self._shape):
            kept = {} if self._t < 0 else self.memory
            memory = {MEMORY + name: rows[asked] for name, rows in kept.items()}
            told = {**values, "clients": asked} if named else values
            content = pack(memory, told, **received)
            message = Message(content, node, RELEASE, group_id=str(server_round))
            self._asks.update(asked if self._t >= 0 else ())
            self._sent.append((message, asked))
        for i in set(missing).difference(*(asked for _, asked in self._sent)):
            self._dropped[i] = "not connected"
        return [message for message, _ in self._sent]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies; if enough of a round's are good, apply the rule to them."""
        silent = {i for _, clients in self._sent for i in clients}
        for reply in replies:
            clients = self._sent.asked_by(reply.metadata.reply_to_message_id)
            if clients is None:
                log(WARNING, "Dropped a reply to a question that was not asked")
                continue
            silent -= set(clients)
            self._take(reply, clients)
        for i in silent:
            self._drop(i, BadReplyError(f"no reply within {self.quorum.timeout:g} s"))
        counts = MetricRecord({"replies": len(self._parts), "dropped": len(self._dropped)})
        if len(self._parts) < self.quorum.enough(self._t) or self._t < 0:
            return None, counts
        self._apply()
        return self._arrays(), counts

    def _apply(self) -> None:
        """Apply the rule to what came, and remember for the clients of a simulation."""
        self._G = self._aggregate()
        self._state = self.refresh(step(self.rule, self.state, self._G, self.quorum.rounds))
        for i, part in self._parts.items():
            for name, row in part.memory.items():
                self.memory[name] = self.memory[name].astype(row.dtype, copy=False)
                self.memory[name][i] = row

    def _aggregate(self) -> Array:
        """The good releases, sorted by client and combined."""
        return self._sum.result()

    def _take(self, reply: Message, clients: list[int]) -> None:
        """Keep what is good of a reply, and name what is not."""
        for i, part in parts_of(reply, self._asked(clients)).items():
            if isinstance(part, BadReplyError):
                self._drop(i, part)
            elif i in self._parts:
                self._drop(i, BadReplyError("replied twice; the first reply counts"))
            else:
                self._sum.put(i, part.release, part.size)
                self._parts[i] = part._replace(release=np.empty(0))
                self.roster.sizes.setdefault(i, part.size)
                self.charged[i] = part.charged

    def _asked(self, clients: list[int]) -> Asked:
        """What the reply to this round's question must look like."""
        # A client that lost its release charges itself anew, each time that it is asked.
        before = (1 + self._began) * (1 + self.quorum.max_repeats)
        most = self.quorum.most(before + max(self._asks[i] for i in clients))
        return Asked(
            clients=clients,
            t=self._t,
            shape=self._shape,
            dtype=self.state.theta.dtype,
            sizes=self.roster.sizes,
            most=most if self.roster.deployed else None,
            memory={} if self._t < 0 else self.memory,
        )

    def dismiss(self, client: int, why: str) -> None:
        """Ask this client no more."""
        if client not in self.refusals:
            log(WARNING, "Client %d is asked no more: %s", client, why)
        self.refusals[client] = why

    def can_go_on(self) -> bool:
        """Whether enough clients are left for the next round."""
        willing = set(self.quorum.wanted(self.state.t)) - self.refusals.keys()
        return len(willing) >= self.quorum.enough(self.state.t)

    def _drop(self, client: int, why: BadReplyError) -> None:
        log(WARNING, "Round %d: dropped client %d: %s", self._t + 1, client, why)
        self._dropped[client] = str(why)
        if why.refused:
            self.refusals[client] = str(why)

    def _shortage(self) -> str:
        good, enough = len(self._parts), self.quorum.enough(self._t)
        return f"{good} good replies, {enough} are needed ({self._reasons()})"

    def _reasons(self) -> str:
        return summed_up({**self._dropped, **self.refusals})

    def _arrays(self) -> ArrayRecord:
        return ArrayRecord({"theta": FlowerArray(self.state.theta)})

    def summary(self) -> None:
        """Say in the log what begins."""
        name, clients, rounds = type(self.rule).__name__, self.quorum.clients, self.quorum.rounds
        log(INFO, "%s: %d clients, %d rounds", name, clients, rounds)
