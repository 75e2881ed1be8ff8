"""Local-only training: clients send nothing, so the server does nothing."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.strategies.rule import Empty, Rule


@dataclass(frozen=True, kw_only=True)
class Alone(Rule):
    """Local-only training, the reference for methods with personal models.

    Clients begin with the server's parameters, train by themselves and send nothing.

    >>> Alone().release_shape(np.zeros((10, 65)))
    (0,)
    """

    client: ClassVar[str | type] = "alone"

    def release_shape(self, theta: Array) -> tuple[int, ...]:
        """The shape of what one client releases in a round: nothing."""
        return (0,)

    def init(self, theta: Array) -> Empty:
        return Empty()

    def update(self, buffers: Empty, G: Array, t: int, rounds: int) -> tuple[Empty, Array]:
        return buffers, np.zeros((), G.dtype)
