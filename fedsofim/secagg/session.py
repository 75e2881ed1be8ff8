r"""What all parties agree on before a sum is made, and what a client insists on.

Let n clients take part, and c of them collude with the server. A list of survivors counts if more
than $(n + c)/2$ of its members signed it. Honest clients sign one list, so two lists would need
more than $n + c - 2c$ honest signers, and there are $n - c$: there is only one. It has t members
or more. Each has a number that belongs to an honest client or to a colluder, and a sum over the
list can only be unmasked if all honest clients on it sent their numbers (`graph`): it has the noise
of $h = t - c$ honest clients or more.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from fedsofim.core.errors import ConfigError, require
from fedsofim.secagg import graph
from fedsofim.secagg.errors import DistrustError, Reason, trust
from fedsofim.secagg.graph import Neighbours
from fedsofim.secagg.wire import digest, integers, join, read_integers, split

MOST = 1 << 20  # clients


class Session(NamedTuple):
    """One sum, of one vector of each client.

    Attributes:
        context: says which run, round and attempt it is, and on what terms. The same context must
            never be used for two sums.
        length: of the vectors.
        threshold: how many clients must be left at the end, t.
        colluders: how many of those that are left may tell the server all they know, c.
        window: on how many clients before and after it each leans; 0 for all. See `graph`.
        quorum: how many of a window give a secret back.
        recover: whether the sum can do without those who vanish. If not, there are two exchanges
            instead of five, no secret is shared, and it is the sum over the whole roster or none.
    """

    context: bytes
    length: int
    threshold: int
    colluders: int
    window: int
    quorum: int
    recover: bool

    @property
    def honest(self) -> int:
        """How many honest clients' noise is in whatever is unmasked, h."""
        return self.threshold - self.colluders

    def signers(self, clients: int) -> int:
        """How many of so many participants must sign the list of survivors.

        >>> Session(b"", 1, 80, 10, 14, 7, True).signers(100)
        56
        """
        return (clients + self.colluders) // 2 + 1

    def encode(self) -> bytes:
        """As bytes."""
        return join([self.context, integers([*self[1:6], int(self.recover)])])

    @property
    def name(self) -> bytes:
        """A digest of all of it, which enters every key and every signature."""
        return _name(self)


# Simulated clients share a process, and ask for it with every message.
@lru_cache(maxsize=64)
def _name(session: Session) -> bytes:
    return digest("session", session.encode())


@lru_cache(maxsize=64)
def read_session(blob: bytes) -> Session:
    """A session from bytes; one that makes no sense is refused."""
    context, rest = split(blob, 2)
    values = read_integers(rest)
    trust(len(values) == 6 and values[5] < 2, Reason.MALFORMED, "not a session")
    length, threshold, colluders, window, quorum, recover = values
    return Session(context, length, threshold, colluders, window, quorum, bool(recover))


class Policy(NamedTuple):
    """What a client insists on, whatever the server asks for.

    Attributes:
        threshold: it takes part only if so many must be left at the end.
        colluders: and only if so many others, of those that are left, may be the server's.
    """

    threshold: int
    colluders: int = 0

    def check_terms(self, session: Session) -> None:
        """Refuse a session that is on weaker terms, whoever takes part."""
        t, c = session.threshold, session.colluders
        enough = t >= self.threshold and c >= self.colluders
        trust(enough, Reason.THRESHOLD, f"{t} must be left, {c} may collude")

    def check(self, session: Session, clients: int) -> None:
        """Refuse a session with so many participants that protects less than this."""
        self.check_terms(session)
        t, c = session.threshold, session.colluders
        used = Neighbours(session.window, session.quorum)
        try:
            check_threshold(clients, t, c, session.recover)
        except ConfigError as error:
            raise DistrustError(Reason.THRESHOLD, str(error)) from None
        try:
            check_neighbours(clients, t, c, used)
        except ConfigError as error:
            raise DistrustError(Reason.NEIGHBOURS, str(error)) from None


def default_threshold(clients: int, colluders: int = 0) -> int:
    """Four of five, and at least as many as make the list of survivors unique.

    >>> default_threshold(100, 10), default_threshold(5), default_threshold(3)
    (80, 4, 3)
    """
    return max(-(-4 * clients // 5), (clients + colluders) // 2 + 1, colluders + 2)


def check(
    clients: int,
    threshold: int,
    colluders: int,
    neighbours: Neighbours | None = None,
    recover: bool = True,
) -> Neighbours:
    """The neighbours to use; refuses numbers with which a sum would not be protected.

    Args:
        clients: who take part, n.
        threshold: who must be left, t.
        colluders: who of them may be the server's, c.
        neighbours: those to use; by default as few as do.
        recover: whether the sum can do without those who vanish.
    """
    check_threshold(clients, threshold, colluders, recover)
    used = neighbours or graph.default_neighbours(clients, threshold, colluders)
    check_neighbours(clients, threshold, colluders, used)
    return used


def check_threshold(n: int, t: int, c: int, recover: bool) -> None:
    """Refuse thresholds that leave no two honest clients, or allow two lists of survivors."""
    require(c >= 0 and t - c >= 2, f"secagg.threshold={t}: must exceed secagg.colluders={c} by 2")
    require(t <= n <= MOST, f"secagg.threshold={t}: of {n} clients so many cannot be left")
    require(
        2 * t > n + c or not recover,
        f"secagg.threshold={t}: must exceed ({n} clients + {c} colluders) / 2, or the server could "
        "show two lists of survivors",
    )


def check_neighbours(n: int, t: int, c: int, used: Neighbours) -> None:
    """Refuse neighbours that colluders could surround."""
    w, quorum = used
    right = c < quorum < t if not w else 1 <= quorum <= w and 2 * w < n
    require(right, f"secagg.neighbours={2 * w}: not for {n} clients, {quorum} shares needed")
    failure = graph.log2_failure(n, c, w, quorum) if w else -math.inf
    require(
        failure <= graph.LOG2_FAILURE,
        f"secagg.neighbours={2 * w}: with {c} colluders of {n} and {quorum} shares needed on each "
        f"side they fail with a chance of 2^{failure:.0f}; 2^{graph.LOG2_FAILURE:.0f} is asked for",
    )
