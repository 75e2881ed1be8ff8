"""Networks in torch: the built-in ones, a user's own, and which layers they may have."""

import math
from collections.abc import Sequence

import torch
from torch import nn

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


def from_factory(factory: str, shape: Sequence[int], classes: int) -> nn.Module:
    """The module that a user's function `package.module:function` makes."""
    make = load_object(factory, "model.factory")
    require(callable(make), f"model.factory={factory}: is no function")
    assert callable(make)
    return made(make, f"model.factory={factory}", shape, classes)


def supported_layers(module: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """The layers that hold parameters, by name, or an error that names those that do not fit."""
    layers: dict[str, nn.Linear | nn.Conv2d] = {}
    refused: list[str] = []
    seen: set[int] = set()
    for name, part in module.named_modules():
        own = list(part.parameters(recurse=False))
        plain = type(part) is nn.Linear or (
            type(part) is nn.Conv2d and part.groups == 1 and part.padding_mode == "zeros"
        )
        mixes = isinstance(part, nn.modules.batchnorm._NormBase | nn.modules.dropout._DropoutNd)
        shared = any(id(p) in seen for p in own)
        if plain and not shared:
            layers[name] = part
        elif own or mixes or list(part.buffers(recurse=False)):
            why = " (shares its parameters)" if shared else ""
            refused.append(f"{name or 'the module itself'}: {type(part).__name__}{why}")
        seen |= {id(p) for p in own}
    require(
        not refused,
        f"model: layers must be Linear, or Conv2d with zero padding and one group, and without "
        f"BatchNorm or Dropout; not so: {', '.join(refused)}",
    )
    require(bool(layers), "model: has no Linear or Conv2d layer")
    return layers


def require_separate(module: nn.Module, shape: Sequence[int]) -> None:
    """Refuse a module in which one record changes what it makes of another, as far as a try shows.

    The clip bounds what a record does to its own gradient, and nothing else.
    """
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[0] = 3 - 10 * other[0]
    with torch.no_grad():
        before, after = (module.eval()(records)[1:] for records in (x, other))
    require(
        torch.allclose(before, after, rtol=1e-3, atol=1e-4, equal_nan=True),
        "model: what it makes of a record depends on the others, so that no clip bounds what a "
        "record does; such as a mean over the batch",
    )
