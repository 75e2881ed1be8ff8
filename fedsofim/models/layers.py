"""Linear and Conv2d layers read as matrices: their parameters, inputs and output gradients."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, unfold


def matrix_shape(layer: nn.Linear | nn.Conv2d) -> tuple[int, int]:
    """The shape `(out, in)` of a layer's parameters as a matrix, with the bias as last column."""
    rows = layer.weight.shape[0]
    return rows, layer.weight.numel() // rows + (layer.bias is not None)


def patches(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer's inputs as `(N, in, S)`, the patches of a convolution; a last 1 for the bias."""
    if isinstance(layer, nn.Conv2d):
        x = pad(x, _padding(layer))
        a = unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride)
    else:
        a = x.flatten(1, -2).transpose(1, 2) if x.ndim > 2 else x[:, :, None]
    if layer.bias is not None:
        a = torch.cat([a, torch.ones_like(a[:, :1])], dim=1)
    return a


def positions(layer: nn.Module, grad: Tensor) -> Tensor:
    """A gradient at a layer's output as `(N, out, S)`."""
    if isinstance(layer, nn.Conv2d):
        return grad.flatten(2)
    return grad.flatten(1, -2).transpose(1, 2) if grad.ndim > 2 else grad[:, :, None]


def _padding(layer: nn.Conv2d) -> list[int]:
    """Zeros to add on the left, right, top and bottom."""
    if layer.padding == "valid":
        return [0, 0, 0, 0]
    sides = []
    for k in (1, 0):
        if layer.padding == "same":
            total = layer.dilation[k] * (layer.kernel_size[k] - 1)
            sides += [total // 2, total - total // 2]
        else:
            sides += [int(layer.padding[k])] * 2
    return sides
