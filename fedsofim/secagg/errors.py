"""Why a client does not answer, and why a round is lost."""

from collections.abc import Iterable
from enum import StrEnum


class Reason(StrEnum):
    """What is wrong; nothing here depends on anybody's numbers."""

    MALFORMED = "a message that cannot be read"
    SESSION = "another session than the one this client takes part in"
    STAGE = "a stage out of turn"
    AGAIN = "a stage that was answered, asked again in other words"
    THRESHOLD = "too few clients for what this client's owner asks"
    NEIGHBOURS = "neighbours that protect less than this client's owner asks"
    ROSTER = "a list of participants that is not right"
    KEYS = "a key that its owner did not sign"
    SURVIVORS = "a list of survivors that is not right"
    SIGNATURES = "survivors that too few clients have signed"
    SHARES = "shares or a seed that do not fit what was announced"


class DistrustError(Exception):
    """A client does not answer; what it has sent so far gives nothing away.

    Attributes:
        reason: one of a few, which the server may hear.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason


class LostError(Exception):
    """A sum that cannot be had any more.

    Attributes:
        clients: those for whose silence or mistakes it is.
    """

    def __init__(self, message: str, clients: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.clients = tuple(sorted(clients))


def trust(condition: bool, reason: Reason, detail: str = "") -> None:
    """Raise a `DistrustError` unless `condition` holds."""
    if not condition:
        raise DistrustError(reason, detail)
