"""Clients of a simulation that add to sums, with the protocol that deployed ones speak.

Between two messages of a session they may move to another process, so what they must remember is in
the state that Flower keeps for their node. Their keys follow from the run: they protect nothing in
a simulation, whose server knows the seed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, RecordDict

from fedsofim.clients.group import Client, transformed
from fedsofim.clients.program import Noise
from fedsofim.clients.together import stage_sums
from fedsofim.core.arrays import Array, flatten, unflatten
from fedsofim.core.errors import ConfigError, require
from fedsofim.federation.identities import simulated
from fedsofim.federation.sessions import AT_ONCE, Question, session_of
from fedsofim.federation.terms import Request, Terms
from fedsofim.secagg.client import Release, answer
from fedsofim.secagg.errors import DistrustError
from fedsofim.secagg.primitives import agree, public_bytes, simulated_key
from fedsofim.secagg.session import Policy, Session
from fedsofim.secagg.state import Member

# In the state of a node: what is remembered of sessions, and their names, the oldest first.
KEPT, NAMES = "sums", "names"
# Pairs whose other client is asked in this process, or not; some rounds of a hundred clients.
PAIRS = 1 << 14


class Agreements:
    """What pairs of keys have in common, computed once where both clients are in this process.

    On its own machine each client would compute it; here half of the work can be left out.
    """

    def __init__(self) -> None:
        self._known: dict[frozenset[bytes], bytes | None] = {}

    def agree(self, mine: X25519PrivateKey, theirs: bytes) -> bytes | None:
        """The same as `primitives.agree`, which is kept for the other of the two."""
        pair = frozenset((public_bytes(mine), theirs))
        if pair in self._known:
            return self._known.pop(pair)
        if len(self._known) >= PAIRS:
            self._known.clear()
        self._known[pair] = agree(mine, theirs)
        return self._known[pair]


_agreements = Agreements()


class Sums(NamedTuple):
    """What simulated clients know of a run.

    Attributes:
        terms: of the run.
        run: its name.
        population: how many clients there are.
        length: how many numbers are added up in a round.
        noise: the clients' noise, by round.
    """

    terms: Terms
    run: str
    population: int
    length: int
    noise: Callable[[int], Noise]

    def answers(
        self,
        asked: Sequence[tuple[Client, Sequence[Question]]],
        received: Mapping[str, Array],
        memory: Mapping[str, Array],
        state: RecordDict,
    ) -> tuple[list[bytes], dict[str, Array]]:
        """The answers of some clients, one after another, and what they remember afterwards.

        Args:
            asked: the clients, and the questions to each.
            received: what the server broadcast, by name.
            memory: what the clients remember, stacked, by name.
            state: of the node that plays them.
        """
        kept = state.setdefault(KEPT, ConfigRecord())
        assert isinstance(kept, ConfigRecord)
        clients = [client for client, _ in asked]
        _forget(kept, [question.name for question in asked[0][1]])
        sessions = [self._session(clients[0], question) for question in asked[0][1]]
        given: list[bytes] = []
        added: dict[int, dict[str, Array]] = {}  # what those who added to a sum remember

        @cache
        def together(t: int) -> tuple[Array, dict[str, Array]]:
            return self._added(clients, t, received, memory)

        def release(k: int, t: int) -> Array:
            values, after = together(t)
            added[k] = {name: rows[k : k + 1] for name, rows in after.items()}
            return np.ravel(values[k])

        for k, (client, questions) in enumerate(asked):
            for question, session in zip(questions, sessions, strict=True):
                values = partial(release, k, question.t)
                words = self._answer(client, question, session, values, kept)
                given.append(words)
        remembered = {
            name: [added.get(k, {}).get(name, rows[k : k + 1]) for k in range(len(asked))]
            for name, rows in memory.items()
        }
        return given, {name: np.concatenate(rows) for name, rows in remembered.items()}

    def _answer(
        self,
        client: Client,
        question: Question,
        session: Session,
        release: Release,
        kept: ConfigRecord,
    ) -> bytes:
        """One client's answer to one question."""
        if not question.words:
            return b""
        policy = Policy(session.threshold, session.colluders)
        key, peers = simulated_key(self.run, client.id), simulated(self.run, self.population).keys
        member = Member(client.id, key, peers, policy, session, _agreements.agree)
        place = f"{question.name}.{client.id}"
        before = kept.get(place, b"")
        assert isinstance(before, bytes)
        try:
            kept[place], reply = answer(before, question.words, member, release)
        except DistrustError as error:
            raise ConfigError(f"secure aggregation: {error}") from None
        return reply

    def _session(self, client: Client, question: Question) -> Session:
        """The session of a question, which is the same for all clients."""
        request = Request(self.run, question.t, "")
        return session_of(self.terms, request, question.name, self._length(client, question.t))

    def _length(self, client: Client, t: int) -> int:
        """How many numbers are added up in round `t`, or in a stage."""
        if t >= 0:
            return self.length
        require(-len(self.terms.stages) <= t, f"round {t}: there is none")
        blank = self.terms.stages[t].summed(client.data.part(slice(0)), True)
        return sum(S.value.size for S in blank)

    def _added(
        self,
        clients: Sequence[Client],
        t: int,
        received: Mapping[str, Array],
        memory: Mapping[str, Array],
    ) -> tuple[Array, dict[str, Array]]:
        """What clients add to a sum, each a row, and what they remember afterwards."""
        program, plan, stages, _ = self.terms
        noise = self.noise(t)
        if t < 0:
            return stage_sums(stages[t], t, clients, received, plan, noise), {}
        clients = transformed(clients, received, noise(clients[0].id, 0).exact)
        blank = program.init(received["theta"], len(clients))
        state = unflatten(blank, memory) if memory else blank
        added, after = program.contribute(received, clients, state, plan, noise)
        return added, flatten(program.train_own(received, clients, after))


def _forget(kept: ConfigRecord, names: Sequence[str]) -> None:
    """Keep this round's session and the next one's: the state goes to and fro with each message."""
    before = kept.get(NAMES, [])
    assert isinstance(before, list)
    order = [str(name) for name in before if name not in names] + list(names)
    for name in order[:-AT_ONCE]:
        for place in [place for place in kept if place.startswith(f"{name}.")]:
            del kept[place]
    kept[NAMES] = order[-AT_ONCE:]
