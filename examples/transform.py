"""A transform of your own: gradients are scaled before they are clipped.

fedsofim run transform=transform:SmallBias transform.scale=0.1
"""

from dataclasses import dataclass

import numpy as np
from fedsofim.core.arrays import Array
from fedsofim.models.records import Factors, Records
from fedsofim.transforms.kfc import Transform


@dataclass(frozen=True, kw_only=True)
class SmallBias(Transform):
    """The bias takes a smaller part of the clip: its gradient is multiplied by `scale`."""

    scale: float = 0.5

    def refresh(
        self, t: int, theta: Array, probes: Records | None, before: Factors | None
    ) -> Factors:
        K, F = theta.shape[0], theta.shape[1] - 1
        columns = np.append(np.ones(F), self.scale)
        return Factors(np.eye(K, dtype=np.float32), np.diag(columns).astype(np.float32))
