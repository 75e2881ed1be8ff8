"""On what terms clients take part in a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.participation import SETUP


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On what terms clients take part.

    Attributes:
        job: the run's config as text, which says to a client all that it needs to know.
        clients: how many there are.
        present: which of them take part in a round (from 0); all by default.
        rounds: how many rounds are planned.
        aggregation: how releases are combined.
        run: the run's own name, by which owners keep their accounts.
        min_clients: how many good replies make a round; by default all clients'.
        on_missing: `repeat` asks the missing clients again; `skip` goes on without a step.
        max_repeats: how often the missing clients of one round are asked again.
        wait: seconds to wait for enough clients.
        timeout: seconds to wait for the replies of a round.
    """

    job: str
    clients: int
    rounds: int
    present: Callable[[int], Sequence[int] | Array] | None = None
    aggregation: Literal["uniform", "size"] = "uniform"
    run: str = ""
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
        if t == SETUP or self.present is None:
            return list(range(self.clients))
        return [int(client) for client in self.present(t)]

    def enough(self, t: int) -> int:
        """How many good replies make round `t`."""
        return min(self.min_clients or self.clients, len(self.wanted(t)))
