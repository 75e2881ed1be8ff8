r"""Who is whose neighbour: all of all, or a ring in an order that nobody chooses.

Masks and shares go between neighbours. Up to `COMPLETE` clients everybody is everybody's. Beyond, a
digest of all keys of the session puts the clients in a ring, and each has the w clients before and
the w after it (Bell et al. 2020, https://eprint.iacr.org/2020/704, use such a ring, too). Here each
secret is needed from *both* sides: it is split in two, and each half is shared on one side, with
$\tau$ of w.

**Claim.** Let the server and c clients collude, all honest clients unmask for one list only (see
`client`), and no two disjoint windows of w places hold $\tau$ colluders each. Then the server
learns the sum over all honest survivors, and nothing else.

*No secret too many.* A client's other secret, which honest clients do not reveal, needs $\tau$
colluders before it and $\tau$ after it.

*In one piece.* Whose own mask is removed has masks with all its neighbours on the list (they
confirmed that), and of two honest neighbours on the list the mask stays secret. So the server
learns at most sums over connected parts of the honest clients on the list. Say that A is one part,
and not all. Go round the ring from one honest client on the list to the next: somewhere the way
leaves A, from u, and elsewhere it comes back. The next after u is no neighbour of u, so none of
the w places after u holds an honest client of the list. But u is unmasked, by itself or by shares,
only if $\tau$ of these w are on the list, and u has seen the keys that they signed: they collude.
So do $\tau$ of the w places before the one where the way comes back. The two windows are disjoint,
as an honest client that is not in A stands between them.

If $c < 2\tau$ this cannot happen. Otherwise the order is random, and the chance is at most
$n^2p^2$, with $p = P[\mathrm{Hyp}(n-1, c, w) \ge \tau]$: for the second $n^2/2$ pairs of windows,
for the first n, and counts in disjoint windows are negatively associated. A server that colludes
with a client can try out keys of that client, or leave clients out, until an order suits it: g
tries are worth a factor g. So clients ask for $2^{-60}$, which leaves $2^{-30}$ after a billion.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

# Up to so many clients everybody is everybody's neighbour; and where windows would be larger.
COMPLETE, LARGEST_WINDOW = 32, 100
# The chance of an order that helps colluders, and of a round that random losses of clients stop.
LOG2_FAILURE, LOSS = -60.0, 1e-3
# The part of the clients that may vanish, at random, without stopping the round.
GONE = 0.1


class Neighbours(NamedTuple):
    """How many places before and after it a client shares with, and how many of them are needed.

    Attributes:
        window: w, on each side; 0 if everybody is everybody's neighbour.
        quorum: of each window, how many shares give a secret back.
    """

    window: int
    quorum: int


class Graph(NamedTuple):
    """The neighbours in one session.

    Attributes:
        order: all participants; the ring, or sorted where all are neighbours.
        window: as in `Neighbours`.
    """

    order: tuple[int, ...]
    window: int

    def windows(self, number: int) -> tuple[tuple[int, ...], ...]:
        """Who holds shares of a client's secrets: those after it and those before; or all others.

        From every window a quorum is needed.
        """
        at, n, w = self.order.index(number), len(self.order), self.window
        if not w:
            return (self.order[:at] + self.order[at + 1 :],)
        after, before = range(at + 1, at + w + 1), range(at - w, at)
        return tuple(tuple(self.order[i % n] for i in places) for places in (after, before))

    def neighbours(self, number: int) -> tuple[int, ...]:
        """All neighbours, in the order of the windows."""
        return tuple(other for window in self.windows(number) for other in window)


def draw(root: bytes, roster: Sequence[int], window: int) -> Graph:
    """The graph that follows from the digest of all keys."""
    return _draw(root, tuple(roster), window)


# Simulated clients share a process, and those of a session have the same graph.
@lru_cache(maxsize=16)
def _draw(root: bytes, roster: tuple[int, ...], window: int) -> Graph:
    if not window:
        return Graph(tuple(sorted(roster)), 0)

    def place(number: int) -> bytes:
        return hashlib.sha256(root + number.to_bytes(4, "little")).digest()

    return Graph(tuple(sorted(roster, key=place)), window)


def complete_quorum(clients: int, threshold: int, colluders: int) -> int:
    """How many shares are needed where all are neighbours: half, but more than collude."""
    return max(colluders + 1, min(threshold - 1, clients // 2))


@lru_cache(maxsize=256)
def log2_failure(clients: int, colluders: int, window: int, quorum: int) -> float:
    """The logarithm of the chance of an order that helps colluders; `-inf` if there is none.

    >>> log2_failure(100, 10, 16, 8), round(log2_failure(1000, 100, 30, 20))
    (-inf, -71)
    """
    if colluders < 2 * quorum:
        return -math.inf
    p = sum(
        math.comb(colluders, k) * math.comb(clients - 1 - colluders, window - k)
        for k in range(quorum, min(window, colluders) + 1)
    )
    return 2 * (math.log2(clients) + math.log2(p) - math.log2(math.comb(clients - 1, window)))


def _loss(clients: int, gone: int, window: int, quorum: int) -> float:
    """At most the chance that some window has lost too many, when `gone` vanish at random.

    What is after one client is before another: a ring has as many windows as clients.
    """
    many = sum(
        math.comb(gone, k) * math.comb(clients - gone, window - k)
        for k in range(window - quorum + 1, min(window, gone) + 1)
    )
    return clients * many / math.comb(clients, window)


@lru_cache(maxsize=256)
def default_neighbours(clients: int, threshold: int, colluders: int) -> Neighbours:
    """The fewest neighbours that keep `LOG2_FAILURE` and `LOSS`; all, if that is not many more.

    A quorum is at least half of a window, also where fewer would do: if more collude than was
    thought, secrets are still safe.

    >>> default_neighbours(20, 14, 2), default_neighbours(100, 70, 10)
    (Neighbours(window=0, quorum=10), Neighbours(window=12, quorum=6))
    """
    gone = min(clients - threshold, math.ceil(GONE * clients))
    most = min(LARGEST_WINDOW, (clients - 1) // 2) if clients > COMPLETE else 0
    for w in range(4, most):
        quorums = range((w + 1) // 2, w + 1)
        safe = (q for q in quorums if log2_failure(clients, colluders, w, q) <= LOG2_FAILURE)
        quorum = next(safe, 0)  # a larger one would only lose more rounds
        if quorum and _loss(clients, gone, w, quorum) <= LOSS:
            return Neighbours(w, quorum)
    return Neighbours(0, complete_quorum(clients, threshold, colluders))
