"""Networks in torch: the built-in ones, and a user's own."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsofim.core.errors import require
from fedsofim.core.loading import load_object
from fedsofim.models.factory import made

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def cnn(
    shape: Sequence[int], classes: int, width: int, blocks: int, activation: str
) -> nn.Sequential:
    """Blocks of convolution, activation and pooling, then a linear layer."""
    channels, height, across = shape
    layers: list[nn.Module] = []
    for block in range(blocks):
        wide = width * 2**block
        layers += [nn.Conv2d(channels, wide, 3, padding=1), ACTIVATIONS[activation]()]
        layers += [nn.AvgPool2d(2)]
        channels, height, across = wide, height // 2, across // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * across, classes))


def mlp(
    shape: Sequence[int], classes: int, width: int, layers: int, activation: str
) -> nn.Sequential:
    """Fully connected layers on whatever the input is."""
    parts: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for _ in range(layers):
        parts += [nn.Linear(inputs, width), ACTIVATIONS[activation]()]
        inputs = width
    return nn.Sequential(*parts, nn.Linear(inputs, classes))


class Residual(nn.Module):
    """Two 3 x 3 convolutions with group norms, and a shortcut past them."""

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, width)
        self.shortcut: nn.Module = nn.Identity()
        if (inputs, stride) != (width, 1):
            convolution = nn.Conv2d(inputs, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.GroupNorm(groups, width))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, `(N, width, H / stride, W / stride)`."""
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def resnet(
    shape: Sequence[int], classes: int, width: int, blocks: int, groups: int
) -> nn.Sequential:
    """CIFAR's ResNet (He et al. 2016) of 6 blocks + 2 layers, with group norm for batch norm."""
    layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 3, padding=1, bias=False)]
    layers += [nn.GroupNorm(groups, width), nn.ReLU()]
    inputs = width
    for stage in range(3):
        wide = width * 2**stage
        for block in range(blocks):
            layers.append(Residual(inputs, wide, 2 if stage and not block else 1, groups))
            inputs = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, classes))


class TextClassifier(nn.Module):
    """Token vectors, a layer on each, their mean, and a linear layer; token 0 is padding."""

    def __init__(self, vocabulary: int, classes: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.mix = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(N, classes)` of tokens `(N, length)`."""
        ids = tokens.long()
        mask = (ids != 0)[:, :, None].to(self.mix.weight.dtype)
        h = torch.tanh(self.mix(self.embedding(ids))) * mask
        logits: Tensor = self.out(h.sum(dim=1) / mask.sum(dim=1).clamp(min=1))
        return logits


def from_factory(factory: str, shape: Sequence[int], classes: int) -> nn.Module:
    """The module that a user's function `package.module:function` makes."""
    make = load_object(factory, "model.factory")
    require(callable(make), f"model.factory={factory}: is no function")
    assert callable(make)
    return made(make, f"model.factory={factory}", shape, classes)
