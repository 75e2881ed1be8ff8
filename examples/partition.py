"""A partition of your own: few clients hold most of the records.

fedsofim run partition=partition:Zipf partition.clients=10 aggregation=size
"""

from dataclasses import dataclass

import numpy as np
from fedsofim.core.arrays import Array
from fedsofim.data.partition import Division


@dataclass(frozen=True, kw_only=True)
class Zipf(Division):
    """The k-th client holds a share of the records in proportion to 1 / k^power.

    Attributes:
        power: 0 gives all clients the same.
    """

    power: float = 1.0

    def owners(
        self, labels: Array, classes: int, rng: np.random.Generator, client_id: Array | None
    ) -> Array:
        share = 1 / np.arange(1, self.clients + 1) ** self.power
        return rng.choice(self.clients, size=len(labels), p=share / share.sum())
