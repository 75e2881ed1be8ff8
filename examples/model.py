"""A model of your own: any torch module of Linear, Conv2d, GroupNorm and Embedding layers.

fedsofim run model=model:Narrow model.width=8
"""

from dataclasses import dataclass
from math import prod

from fedsofim.models.kinds import Deep
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Narrow(Deep):
    """One hidden layer between two of your own choice.

    Attributes:
        width: units of the hidden layer.
    """

    width: int = 16

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        hidden = nn.Linear(prod(shape), self.width)
        return nn.Sequential(nn.Flatten(), hidden, nn.Tanh(), nn.Linear(self.width, classes))
