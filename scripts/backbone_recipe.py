"""The recipe of `pretrain_backbone.py`: its settings, the images, and what is done to them."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedsofim.core.errors import require
from fedsofim.data.images import Split
from fedsofim.data.recipe import Preprocessing


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides the weights, besides the images."""

    backbone: str
    epochs: int = 24
    batch: int = 128
    lr: float = 0.25
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup: float = 0.2
    pad: int = 4
    sizes: tuple[int, ...] = (32,)
    dropout: float = 0.5
    bf16: bool = False
    seed: int = 0
    start: str = ""  # a file of weights to begin with, for a second cycle
    end: float = 1e-4  # the last rate, over the largest
    average: int = 0  # over how many steps the weights are averaged; 0: the last ones

    def __post_init__(self) -> None:
        require(
            all(8 <= s <= 32 for s in self.sizes), f"--sizes {self.sizes}: each must be 8 to 32"
        )
        require(0 <= self.dropout < 1, f"--dropout {self.dropout}: must be in [0, 1)")

    def size_at(self, epoch: int) -> int:
        """Width and height of the images of an epoch (from 0)."""
        return self.sizes[epoch * len(self.sizes) // self.epochs]

    def lr_at(self, share: float) -> float:
        """The learning rate when this share of all steps is done: a cosine up, a cosine down."""
        start, end = self.lr / 10, self.lr * self.end
        if share < self.warmup:
            return _cosine(start, self.lr, share / self.warmup)
        return _cosine(self.lr, end, (share - self.warmup) / (1 - self.warmup))


def _cosine(a: float, b: float, share: float) -> float:
    return b + (a - b) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class Images:
    """Images in memory, once: `(N, 3, 32, 32)` uint8 and `(N,)` labels."""

    x: Tensor
    y: Tensor

    @classmethod
    def read(cls, split: Split) -> "Images":
        """All of a split."""
        x = torch.empty((len(split.labels), 3, 32, 32), dtype=torch.uint8)
        start = 0
        for batch in split.batches(1000):
            chunk = torch.from_numpy(np.array(batch)).permute(0, 3, 1, 2)
            require(
                chunk.shape[2:] == (32, 32), f"images are {tuple(chunk.shape[2:])}, not 32 x 32"
            )
            x[start : start + len(chunk)] = chunk
            start += len(chunk)
        return cls(x, torch.from_numpy(split.labels))


def normalise(x: Tensor) -> Tensor:
    """Inputs of a backbone, in the layout that CPUs convolve fastest."""
    how = Preprocessing()
    mean, std = torch.tensor(how.mean)[:, None, None], torch.tensor(how.std)[:, None, None]
    return ((x.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


def augment(x: Tensor, pad: int) -> Tensor:
    """Each image shifted by up to `pad` pixels, black from outside, and flipped half the time."""
    n, _, height, width = x.shape
    padded = nn.functional.pad(x, (pad, pad, pad, pad))
    rows = torch.randint(2 * pad + 1, (n, 1)) + torch.arange(height)
    columns = torch.randint(2 * pad + 1, (n, 1)) + torch.arange(width)
    flip = torch.rand(n, 1) < 0.5
    columns = torch.where(flip, columns.flip(1), columns)
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def shrink(x: Tensor, size: int) -> Tensor:
    """Normalised images at another size, averaged over what a new pixel covers."""
    if x.shape[-1] == size:
        return x
    small = nn.functional.interpolate(x, (size, size), mode="bilinear", antialias=True)
    return small.contiguous(memory_format=torch.channels_last)
