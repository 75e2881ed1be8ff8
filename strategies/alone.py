"""Local-only training: the server that is told nothing."""

from dataclasses import dataclass

import numpy as np
from fedsofim.strategies.rule import Nothing, Rule

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require


@dataclass(frozen=True, kw_only=True)
class Alone(Rule):
    """Local-only training, the reference for methods with personal models.

    Clients begin with the server's parameters, train by themselves and send nothing.

    Attributes:
        lr: has no meaning here, and stays 1.
    """

    lr: float = 1.0

    def __post_init__(self) -> None:
        require(self.lr == 1, f"lr={self.lr}: the server takes no step; set client.lr")

    def release_shape(self, theta: Array) -> tuple[int, ...]:
        """The shape of what one client releases in a round: nothing."""
        return (0,)

    def init(self, theta: Array) -> Nothing:
        return Nothing()

    def update(self, buffers: Nothing, G: Array, t: int) -> tuple[Nothing, Array]:
        return buffers, np.zeros((), G.dtype)
