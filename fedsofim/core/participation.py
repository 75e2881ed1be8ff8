"""Who takes part in which round.

The schedule is drawn from its own stream and the round's number alone: it is public, it does not
depend on data, and every method that is run with the same seed sees the same clients.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.rng import Purpose, stream


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A fixed number of clients in every round, drawn without replacement.

    Attributes:
        clients: how many there are, n.
        fraction: how many of them take part in a round, at least one.
        seed: of the run.
        rounds: of the run, T.
    """

    clients: int
    fraction: float
    seed: int
    rounds: int

    def __post_init__(self) -> None:
        require(
            0 < self.fraction <= 1,
            f"participation={self.fraction}: must be above 0 and at most 1",
        )

    @property
    def size(self) -> int:
        """How many clients take part in a round, m.

        >>> Schedule(clients=20, fraction=0.25, seed=0, rounds=1).size
        5
        """
        return max(1, math.floor(self.fraction * self.clients + 0.5))

    def present(self, t: int) -> Array:
        """The clients of round `t` (from 0), in ascending order, `(m,)`."""
        if self.size == self.clients:
            return np.arange(self.clients)
        rng = stream(self.seed, Purpose.SAMPLING, t)
        return np.sort(rng.choice(self.clients, self.size, replace=False))

    def busiest(self, rounds: int, since: int = 0) -> int:
        """The rounds, from `since` to `rounds`, of the client who took part most in these.

        No amplification is claimed for the draw: the schedule is public, so a record is exposed in
        the rounds of its client, and in these in full.
        """
        if self.size == self.clients:
            return rounds - since
        return int(_most(self, since)[rounds - since])


@lru_cache(maxsize=16)
def _most(schedule: Schedule, since: int) -> Array:
    """How often the busiest client took part in the first rounds after `since`: 0, 1, ..."""
    counts, most = np.zeros(schedule.clients, np.int64), [0]
    for t in range(since, schedule.rounds):
        counts[schedule.present(t)] += 1
        most.append(int(counts.max()))
    return np.array(most)
