"""Layers that multiply: Linear, and Conv2d by its patches."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fedsofim.core.arrays import Array
from fedsofim.models.layers import (
    Call,
    Gradients,
    Layer,
    M,
    Moments,
    Pair,
    held,
    products_sum,
    second_moment,
    transformed,
)

CACHED = 1 << 17  # numbers that stay in a core's cache


class Dense(Layer[M]):
    """A layer that multiplies: Linear, or Conv2d by its patches."""

    def __init__(self, module: M) -> None:
        super().__init__(module)
        self.weight: Tensor = module.weight  # type: ignore[assignment]
        self.bias = module.bias is not None
        rows = len(self.weight)
        self.shape = (rows, self.weight.numel() // rows + self.bias)

    @abstractmethod
    def inputs(self, x: Tensor) -> Tensor:
        """What the matrix is multiplied with, `(N, in, S)`, without the 1 of the bias."""

    @abstractmethod
    def outputs(self, delta: Tensor) -> Tensor:
        """The gradient at the output, `(N, out, S)`."""

    def init(self, rng: np.random.Generator) -> Array:
        bound = 1 / math.sqrt(self.shape[1] - self.bias)
        return rng.uniform(-bound, bound, self.shape)

    def parameters(self, matrix: Tensor) -> dict[str, Tensor]:
        values = {"bias": matrix[:, -1]} if self.bias else {}
        columns = self.shape[1] - self.bias
        return values | {"weight": matrix[:, :columns].reshape(self.weight.shape)}

    def whole(self, calls: Sequence[Call], matrix: Tensor) -> Tensor:
        g = self.products(calls[0])
        for call in calls[1:]:
            g += self.products(call)
        return g

    def gradients(self, calls: Sequence[Call], matrix: Tensor, U: Pair | None) -> Gradients:
        rows, columns = self.shape
        S = sum(call.delta[0].numel() for call in calls) // rows
        if S > 1 and S * (rows + columns) >= rows * columns:
            return held(transformed(self.whole(calls, matrix), U))
        a, delta = self._sides(calls)

        def add(w: Tensor, out: Tensor) -> None:
            d = (delta * w[:, None, None]).transpose(0, 1).flatten(1)
            out[:, : a.shape[1]].addmm_(d, a.transpose(1, 2).flatten(0, 1))
            if self.bias:
                out[:, -1] += d.sum(dim=1)

        if U is None:
            return Gradients(_ghost(a, delta, self.bias), add)
        bent = _multiplied(delta, U.G.T, None)
        if S == 1:
            square = (self._bent_length(calls[0].x, a, U) * _lengths(bent, False)[:, 0]) ** 2
        else:
            square = _ghost(self._bent(a, U), bent, False)
        return Gradients(square, add, plain=True)

    def _bent(self, a: Tensor, U: Pair) -> Tensor:
        """`U_A' (a, 1)` at every position."""
        k = a.shape[1]
        return _multiplied(a, U.A[:k], U.A[k] if self.bias else None)

    def _bent_length(self, x: Tensor, a: Tensor, U: Pair) -> Tensor:
        """The norm of each input under `U_A`, `(N,)`; that of a record is computed but once."""
        place = (x.storage_offset(), *x.stride(), *x.shape)
        length = None if U.known is None else U.known.get(place)
        if length is None:
            length = _lengths(self._bent(a, U), False)[:, 0]
            if U.known is not None:
                U.known[place] = length
        return length

    def moments(self, calls: Sequence[Call], matrix: Tensor) -> Moments:
        a, delta = self._sides(calls)
        if self.bias:
            a = torch.cat([a, torch.ones_like(a[:, :1])], dim=1)
        return Moments(second_moment(delta), second_moment(a), a.shape[0] * a.shape[2])

    def _sides(self, calls: Sequence[Call]) -> tuple[Tensor, Tensor]:
        """Inputs and gradients at the outputs; several uses are further positions."""
        a = [self.inputs(call.x) for call in calls]
        delta = [self.outputs(call.delta) for call in calls]
        return (a[0], delta[0]) if len(calls) == 1 else (torch.cat(a, 2), torch.cat(delta, 2))

    def products(self, call: Call) -> Tensor:
        """Every record's gradient from one use of the layer, `(N, out, in)`."""
        a, delta = self.inputs(call.x), self.outputs(call.delta)
        return self._with_bias(torch.bmm(delta, a.transpose(1, 2)), delta)

    def _with_bias(self, g: Tensor, delta: Tensor) -> Tensor:
        return torch.cat([g, delta.sum(dim=2, keepdim=True)], dim=2) if self.bias else g


class LinearLayer(Dense[nn.Linear]):
    """Linear, on vectors or on sequences of them."""

    def inputs(self, x: Tensor) -> Tensor:
        return _by_position(x)

    def outputs(self, delta: Tensor) -> Tensor:
        return _by_position(delta)


class ConvLayer(Dense[nn.Conv2d]):
    """Conv2d with one group and zero padding."""

    def inputs(self, x: Tensor) -> Tensor:
        view = self._patches(x)
        return view.reshape(len(x), -1, view.shape[4] * view.shape[5])

    def outputs(self, delta: Tensor) -> Tensor:
        return delta.flatten(2)

    def products(self, call: Call) -> Tensor:
        """A few records at a time, whose patches are copied to where the cache keeps them."""
        view, delta = self._patches(call.x), self.outputs(call.delta)
        some = max(1, CACHED // view[0].numel())
        a = view.new_empty(some, *view.shape[1:])
        g = view.new_empty(*delta.shape[:2], self.shape[1] - self.bias)
        for i in range(0, len(view), some):
            n = len(a[: len(view) - i].copy_(view[i : i + some]))
            patches = a[:n].view(n, g.shape[2], -1)
            torch.bmm(delta[i : i + n], patches.transpose(1, 2), out=g[i : i + n])
        return self._with_bias(g, delta)

    def _patches(self, x: Tensor) -> Tensor:
        """A view of all patches, `(N, channels, kernel height, width, output height, width)`."""
        layer, sides = self.module, _padding(self.module)
        x = (pad(x, sides) if any(sides) else x).contiguous()
        (N, C, *size), (n, c, *step) = x.shape, x.stride()
        across = [
            (size[k] - layer.dilation[k] * (layer.kernel_size[k] - 1) - 1) // layer.stride[k] + 1
            for k in (0, 1)
        ]
        within = [step[k] * layer.dilation[k] for k in (0, 1)]
        between = [step[k] * layer.stride[k] for k in (0, 1)]
        shape = (N, C, *layer.kernel_size, *across)
        return x.as_strided(shape, (n, c, *within, *between))


def _multiplied(v: Tensor, matrix: Tensor, more: Tensor | None) -> Tensor:
    """`matrix' v_s + more` at every position of `(N, d, S)`, in one product of matrices."""
    rows = v.transpose(1, 2).reshape(-1, v.shape[1])
    out = rows @ matrix if more is None else torch.addmm(more, rows, matrix)
    return out.view(len(v), v.shape[2], -1).transpose(1, 2)


def _by_position(x: Tensor) -> Tensor:
    """`(N, ..., d)` as `(N, d, S)`."""
    return x.flatten(1, -2).transpose(1, 2) if x.ndim > 2 else x[:, :, None]


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


def _ghost(a: Tensor, delta: Tensor, bias: bool) -> Tensor:
    """The squared norm of `sum_s delta_s a_s'` for each record, and of the bias's, never less."""
    lengths = _lengths(a, bias) * _lengths(delta, False)
    if a.shape[2] == 1:
        return lengths[:, 0] ** 2
    gram = a.transpose(1, 2) @ a
    gram = gram + 1 if bias else gram
    size = a.shape[1] + delta.shape[1]
    return products_sum(gram, delta.transpose(1, 2) @ delta, lengths, size)


def _lengths(v: Tensor, bias: bool) -> Tensor:
    """The norm at each position, `(N, S)` float64."""
    norm: Tensor = torch.linalg.vector_norm(v, dim=1, dtype=torch.float64)
    return (norm.square() + 1).sqrt() if bias else norm
