"""A data set of your own: points around random centres.

fedsofim run dataset=dataset:Blobs dataset.spread=0.5
"""

from dataclasses import dataclass

import numpy as np
from fedsofim.core.arrays import Array
from fedsofim.data.own import Data


@dataclass(frozen=True, kw_only=True)
class Blobs(Data):
    """Three classes in five dimensions.

    Attributes:
        spread: how far points are from their class's centre.
    """

    spread: float = 0.3

    def arrays(self) -> dict[str, Array]:
        rng = np.random.default_rng(0)  # every process of a run must see the same records
        y = np.arange(1200) % 3
        x = rng.normal(size=(3, 5))[y] + self.spread * rng.normal(size=(1200, 5))
        return {"train_x": x[:900], "train_y": y[:900], "test_x": x[900:], "test_y": y[900:]}
