"""Who is asked in a round, and whose answers make it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.strategies.aggregation import Aggregation


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """Who is asked in a round, and whose answers make it.

    Attributes:
        job: the run's config as text, which says to a client all that it needs to know.
        clients: how many there are.
        present: which of them take part in a round (from 0); all by default.
        rounds: how many rounds are planned.
        aggregation: how releases are combined.
        malicious_fraction: of the clients of a round, for `trimmed` and `krum`.
        run: the run's own name, by which owners keep their accounts.
        cost: what a client is charged after this many releases, in releases of a clipped sum.
        min_clients: how many good replies make a round; by default all clients'.
        on_missing: `repeat` asks the missing clients again; `skip` goes on without a step.
        max_repeats: how often the missing clients of one round are asked again.
        wait: seconds to wait for enough clients.
        timeout: seconds to wait for a client's reply.
    """

    job: str
    clients: int
    rounds: int
    present: Callable[[int], Sequence[int] | Array] | None = None
    aggregation: Aggregation = "uniform"
    malicious_fraction: float = 0.1
    run: str = ""
    cost: Callable[[int], float] = float
    min_clients: int | None = None
    on_missing: Literal["repeat", "skip"] = "repeat"
    max_repeats: int = 3
    wait: float = 300
    timeout: float = 300

    def __post_init__(self) -> None:
        require(self.clients >= 1, f"clients={self.clients}: must be at least 1")
        least = self.min_clients
        require(least is None or 1 <= least <= self.clients, f"min_clients={least}: out of range")

    def wanted(self, t: int) -> list[int]:
        """The clients of round `t`; everyone takes part in what comes before the first."""
        if t < 0 or self.present is None:
            return list(range(self.clients))
        return [int(client) for client in self.present(t)]

    def most(self, asked: int) -> float:
        """The most that a client can have charged itself that was asked `asked` times in all.

        More than the plan covers no client charges itself: it is not asked again before that.
        """
        return self.cost(min(asked, self.rounds))

    def enough(self, t: int) -> int:
        """How many good replies make round `t`."""
        return min(self.min_clients or self.clients, len(self.wanted(t)))
