"""Clients and a server of secure aggregation in one place, with somebody hostile in between."""

from collections.abc import Callable, Collection, Mapping

import numpy as np
import pytest

from fedsofim.secagg import session as sessions
from fedsofim.secagg import wire
from fedsofim.secagg.client import answer
from fedsofim.secagg.errors import DistrustError
from fedsofim.secagg.graph import Neighbours
from fedsofim.secagg.primitives import simulated_key
from fedsofim.secagg.server import Server
from fedsofim.secagg.session import Policy, Session
from fedsofim.secagg.stages import Stage
from fedsofim.secagg.state import Member

# The client that is lied to.
ME = 0
# What becomes of a request or a reply on its way; none if it never arrives.
Change = Callable[[Stage, int, bytes], bytes | None]


def session(
    clients: int,
    threshold: int,
    colluders: int = 0,
    *,
    length: int = 5,
    recover: bool = True,
    neighbours: Neighbours | None = None,
    context: bytes = b"run 1, round 1",
) -> Session:
    used = sessions.check(clients, threshold, colluders, neighbours, recover)
    return Session(context, length, threshold, colluders, *used, recover)


def arrives(stage: Stage, number: int, message: bytes) -> bytes | None:
    return message


class Party:
    """All of a session's parties, and what was said between them."""

    def __init__(self, agreed: Session, clients: int) -> None:
        self.session, self.numbers = agreed, range(clients)
        self.private = {i: simulated_key("test", i) for i in self.numbers}
        self.keys = {i: key.public_key() for i, key in self.private.items()}
        rng = np.random.default_rng(clients)
        self.values = rng.integers(-(2**40), 2**40, (clients, agreed.length))
        self.states = dict.fromkeys(self.numbers, b"")
        self.server = Server(agreed, self.keys)
        self.requests: dict[tuple[Stage, int], bytes] = {}
        self.replies: dict[tuple[Stage, int], bytes] = {}
        self.drawn: list[int] = []

    def member(self, number: int, **changed: object) -> Member:
        c, t = self.session.colluders, self.session.threshold
        plain = Member(number, self.private[number], self.keys, Policy(t, c), self.session)
        return plain._replace(**changed)

    def ask(self, number: int, request: bytes, **changed: object) -> bytes:
        """One client's answer."""

        def release() -> np.ndarray:
            self.drawn.append(number)
            return self.values[number]

        member = self.member(number, **changed)
        self.states[number], reply = answer(self.states[number], request, member, release)
        return reply

    def run(
        self,
        gone: Mapping[Stage, Collection[int]] | None = None,
        *,
        request: Change = arrives,
        reply: Change = arrives,
        until: Stage | None = None,
    ) -> dict[int, bytes]:
        """Go through the stages; the requests of stage `until` are returned unsent."""
        asked, missing = self.server.open(self.numbers), set[int]()
        while asked and self.server.stage != until:
            stage = self.server.stage
            missing |= set((gone or {}).get(stage, ()))
            for i in asked.keys() - missing:
                sent = request(stage, i, asked[i])
                if sent is None:
                    continue
                self.requests[stage, i] = sent
                said = reply(stage, i, self.ask(i, sent))
                if said is not None:
                    self.replies[stage, i] = said
                    self.server.take(i, said)
            asked = self.server.close()
        return asked

    def sum_of(self, numbers: Collection[int]) -> np.ndarray:
        return self.values[sorted(numbers)].sum(axis=0)


def made(stage, party, *fields):
    return bytes([stage]) + wire.join([party.session.name, *fields])


def refuses(party, request, reason, number=ME, **changed):
    """The client does not answer, and what it remembers is what it was."""
    before = party.states[number]
    with pytest.raises(DistrustError) as caught:
        party.ask(number, request, **changed)
    assert caught.value.reason == reason
    assert party.states[number] == before


def at(stage, clients=6, threshold=5, colluders=0, **more):
    """A party that is about to be asked in a stage, and the requests."""
    party = Party(session(clients, threshold, colluders, **more), clients)
    return party, party.run(until=stage)
