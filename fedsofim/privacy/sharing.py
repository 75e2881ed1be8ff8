"""How clients share the noise: whose parts any sum carries that can be seen at all."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from fedsofim.privacy.disclosure import Discloses
from fedsofim.privacy.plan import Plan

# What is released before the first round, as far as the account must know it: its terms.
Stages = Sequence[object]


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What all clients of a run agree on before any of them adds to a sum.

    Attributes:
        clients: how many take part in a round.
        threshold: the fewest whose sum can be seen.
        colluders: how many of them may work for the server.
        window: how many clients on each side are a client's neighbours; 0 if all are.
        quorum: of a window, how many give a vanished client's secret back.
        roster: a digest of all clients' public keys, as an owner has pinned them.
    """

    clients: int
    threshold: int
    colluders: int = 0
    window: int = 0
    quorum: int = 1
    roster: str = ""

    @property
    def sharers(self) -> int:
        """The fewest honest clients in a sum that can be seen; their noise adds up to all of it."""
        return self.threshold - self.colluders

    @property
    def recover(self) -> bool:
        """Whether a sum can do without clients that vanish."""
        return self.threshold < self.clients

    def honest(self, others: int, population: int) -> int:
        """The fewest honest clients in a sum, by what one of them assumes; at least itself.

        The worst server keeps all that work for it, and lets honest ones vanish down to the
        threshold. More than the run itself counts on does not count.

        Args:
            others: how many other clients are honest, as this one assumes.
            population: how many clients there are.

        >>> four = Sharing(clients=5, threshold=4)
        >>> four.honest(4, 5), four.honest(3, 5), four.honest(0, 5)
        (4, 3, 1)
        """
        dishonest = population - 1 - min(others, population - 1)
        return max(1, min(self.sharers, self.threshold - dishonest))


def digest_of(
    program: Discloses, plan: Plan, stages: Stages = (), sharing: Sharing | None = None
) -> str:
    """A name for the terms: all that decides what a client computes and is charged.

    A run whose sums are seen together is never one whose releases are seen alone.
    """
    terms = (program, plan, *stages) if sharing is None else (program, plan, *stages, sharing)
    return hashlib.sha256(repr(terms).encode()).hexdigest()
