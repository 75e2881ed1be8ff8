"""Sums in sessions: what both sides know of one, and how messages carry its questions.

A message may ask for two sessions at once: this round's, and the next one's, whose keys are then
ready when the round begins.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedsofim.core.errors import ConfigError, require
from fedsofim.federation.terms import Request, Terms
from fedsofim.secagg.session import Session

# How many sessions a message may ask for.
AT_ONCE = 2


class Question(NamedTuple):
    """What a server asks a client in one session.

    Attributes:
        t: the round, or below 0 the stage.
        name: of the session, which the server draws.
        words: the protocol's own; empty if there is nothing to ask this client.
    """

    t: int
    name: str
    words: bytes


def session_of(terms: Terms, request: Request, name: str, length: int) -> Session:
    """One sum, as both sides know it; the name is the server's, all else follows from the terms."""
    s = terms.sharing
    assert s is not None
    require(re.fullmatch("[0-9a-f]{32}", name) is not None, "session: not a name of a session")
    about = repr((request.run, request.t, name, terms.digest)).encode()
    context = hashlib.sha256(about).digest()
    return Session(context, length, s.threshold, s.colluders, s.window, s.quorum, s.recover)


def pack_questions(asked: Sequence[Sequence[Question]]) -> dict[str, Any]:
    """The questions of each client, the same sessions for all, as values of a message."""
    return {
        "rounds": [question.t for question in asked[0]],
        "sessions": [question.name for question in asked[0]],
        "words": [question.words for questions in asked for question in questions],
    }


def questions_of(values: dict[str, Any]) -> list[list[Question]]:
    """The questions of a message, for each of its clients."""
    rounds, names, words = (values.get(key) for key in ("rounds", "sessions", "words"))
    count = len(values["clients"])
    if not (isinstance(rounds, list) and isinstance(names, list) and isinstance(words, list)):
        raise ConfigError("sessions: this run's clients answer questions about sums alone")
    require(
        0 < len(rounds) == len(names) <= AT_ONCE
        and len(set(names)) == len(names)
        and len(words) == count * len(rounds)
        and all(type(t) is int for t in rounds)
        and all(isinstance(name, str) for name in names)
        and all(isinstance(each, bytes) for each in words),
        "sessions: not questions about sums",
    )
    said = [Question(*each) for each in zip(rounds * count, names * count, words, strict=True)]
    return [said[k : k + len(rounds)] for k in range(0, len(said), len(rounds))]
