r"""Layers read as matrices: norms of single records' gradients, without the gradients.

A layer's parameters are one matrix, `(out, in)` with the bias as a last column. The gradient of one
record is $g = \sum_s \delta_s a_s^\top$ over positions s, with $a_s$ the layer's input (a patch, of
a convolution; a 1 for the bias) and $\delta_s$ the loss's gradient at its output. Its norm needs no
g: $\lVert g\rVert^2 = \sum_{s,t} (a_s^\top a_t)(\delta_s^\top \delta_t)$ (Goodfellow 2015, Li et
al. 2022). Where there are many positions and few parameters, g itself is cheaper (Bu et al. 2022).
A clipped sum is $\sum_i w_i g_i$, one matrix product of what was kept: no second pass backwards.

Under a transform $g \to U_G\,g\,U_A$ the same holds for $U_A^\top a_s$ and $U_G\delta_s$.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, pad

from fedsofim.core.arrays import Array

M = TypeVar("M", bound=nn.Module)
CACHED = 1 << 17  # numbers that stay in a core's cache


class Call(NamedTuple):
    """One use of a layer.

    Attributes:
        x: what went in, `(N, ...)`.
        delta: the gradients of the records' own losses at what came out, `(N, ...)`.
    """

    x: Tensor
    delta: Tensor


class Pair(NamedTuple):
    """A layer's factors, `(out, out)`, and `(in, in)` or a diagonal `(in,)`."""

    G: Tensor
    A: Tensor


class Gradients(NamedTuple):
    """The gradients of some records in one layer, as far as a clipped sum asks for them.

    Attributes:
        squares: the square of each one's norm, never too small, `(N,)` float64.
        add: adds their sum, with the weights `(N,)`, to a matrix `(out, in)`.
    """

    squares: Tensor
    add: Callable[[Tensor, Tensor], None]


class Moments(NamedTuple):
    """Sums of second moments over records, in float64, and over how many positions A is one."""

    G: Array
    A: Array
    positions: int


class Layer(ABC, Generic[M]):
    """A layer with parameters, which are read as one matrix.

    Attributes:
        shape: of the matrix, `(out, in)`.
        diagonal: whether the factor on the input's side is a diagonal.
        entire: whether the module's children belong to it.
    """

    shape: tuple[int, int]
    diagonal = False
    entire = False

    def __init__(self, module: M) -> None:
        self.module = module

    @property
    def factor_sizes(self) -> tuple[int, int]:
        """How many numbers the two factors have."""
        rows, columns = self.shape
        return rows**2, columns if self.diagonal else columns**2

    @abstractmethod
    def init(self, rng: np.random.Generator) -> Array:
        """Initial parameters, as the matrix."""

    @abstractmethod
    def parameters(self, matrix: Tensor) -> dict[str, Tensor]:
        """The matrix as the module's parameters, by name."""

    @abstractmethod
    def whole(self, calls: Sequence[Call], matrix: Tensor) -> Tensor:
        """Every record's gradient, `(N, out, in)`."""

    def moments(self, calls: Sequence[Call], matrix: Tensor) -> Moments:
        """The diagonal of the Fisher matrix, where it has no Kronecker factors."""
        g = self.whole(calls, matrix)
        return Moments(np.full((1, 1), float(len(g))), _squares(g).sum(0).numpy(), len(g))

    def gradients(self, calls: Sequence[Call], matrix: Tensor, U: Pair | None) -> Gradients:
        """The gradients, under the transform if there is one."""
        return held(transformed(self.whole(calls, matrix), U))


def transformed(g: Tensor, U: Pair | None) -> Tensor:
    """`U_G g U_A` of matrices, `(..., out, in)`."""
    if U is None:
        return g
    g = U.G @ g
    return g * U.A if U.A.ndim == 1 else g @ U.A


def held(g: Tensor) -> Gradients:
    """Gradients that are there, `(N, out, in)`."""

    def add(w: Tensor, out: Tensor) -> None:
        out.add_((w @ g.flatten(1)).view(g.shape[1:]))

    rows = torch.linalg.vector_norm(g, dim=2)  # in float32; what that may lose is made up for
    lost = g.shape[2] * torch.finfo(g.dtype).eps
    return Gradients(rows.double().square().sum(dim=1) * (1 + lost) ** 2, add)


def _squares(g: Tensor) -> Tensor:
    return g.double().flatten(1).square()


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
        if U is None:
            square = _ghost(a, delta, self.bias)
        else:
            k = columns - self.bias
            bent = torch.einsum("ki,nks->nis", U.A[:k], a)
            bent = bent + U.A[k:].T if self.bias else bent
            square = _ghost(bent, torch.einsum("oj,njs->nos", U.G, delta), False)

        def add(w: Tensor, out: Tensor) -> None:
            g = out if U is None else torch.zeros_like(out)
            d = (delta * w[:, None, None]).transpose(0, 1).flatten(1)
            g[:, : a.shape[1]].addmm_(d, a.transpose(1, 2).flatten(0, 1))
            if self.bias:
                g[:, -1] += d.sum(dim=1)
            if U is not None:
                out.add_(transformed(g, U))

        return Gradients(square, add)

    def moments(self, calls: Sequence[Call], matrix: Tensor) -> Moments:
        a, delta = self._sides(calls)
        if self.bias:
            a = torch.cat([a, torch.ones_like(a[:, :1])], dim=1)
        return Moments(_moment(delta), _moment(a), a.shape[0] * a.shape[2])

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
        return x.flatten(1, -2).transpose(1, 2) if x.ndim > 2 else x[:, :, None]

    outputs = inputs


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


class EmbeddingLayer(Layer[nn.Embedding]):
    """Embedding, as a matrix `(width, tokens)` that is multiplied with one-hot tokens."""

    diagonal = True

    def __init__(self, module: nn.Embedding) -> None:
        super().__init__(module)
        self.shape = (module.embedding_dim, module.num_embeddings)

    def init(self, rng: np.random.Generator) -> Array:
        table = rng.standard_normal(self.shape)
        if self.module.padding_idx is not None:
            table[:, self.module.padding_idx] = 0
        return table

    def parameters(self, matrix: Tensor) -> dict[str, Tensor]:
        return {"weight": matrix.T}

    def whole(self, calls: Sequence[Call], matrix: Tensor) -> Tensor:
        ids, delta = self._sides(calls)
        g = delta.new_zeros(len(ids), self.shape[1], self.shape[0])
        return g.scatter_add_(1, ids[:, :, None].expand_as(delta), delta).transpose(1, 2)

    def gradients(self, calls: Sequence[Call], matrix: Tensor, U: Pair | None) -> Gradients:
        ids, delta = self._sides(calls)
        bent = delta if U is None else (delta @ U.G.T) * U.A[ids][:, :, None]
        same = (ids[:, :, None] == ids[:, None, :]).to(delta.dtype)
        square = _products_sum(same, bent @ bent.transpose(1, 2), bent.norm(dim=2), self.shape[0])

        def add(w: Tensor, out: Tensor) -> None:
            d = (delta * w[:, None, None]).flatten(0, 1)
            table = d.new_zeros(self.shape[::-1]).index_add_(0, ids.flatten(), d)
            out.add_(transformed(table.T, U))

        return Gradients(square, add)

    def moments(self, calls: Sequence[Call], matrix: Tensor) -> Moments:
        ids, delta = self._sides(calls)
        counts = torch.bincount(ids.flatten(), minlength=self.shape[1])
        return Moments(_moment(delta.transpose(1, 2)), counts.double().numpy(), ids.numel())

    def _sides(self, calls: Sequence[Call]) -> tuple[Tensor, Tensor]:
        """Tokens `(N, S)`, and the gradients of their vectors `(N, S, width)`, zero for padding."""
        ids = torch.cat([call.x.flatten(1) for call in calls], 1)
        delta = torch.cat([call.delta.reshape(len(ids), -1, self.shape[0]) for call in calls], 1)
        if self.module.padding_idx is not None:
            delta = delta * (ids != self.module.padding_idx)[:, :, None]
        return ids, delta


class GroupNormLayer(Layer[nn.GroupNorm]):
    """GroupNorm's scale and shift, `(1, 2 channels)`; small, so gradients are held."""

    diagonal = True

    def __init__(self, module: nn.GroupNorm) -> None:
        super().__init__(module)
        self.shape = (1, 2 * module.num_channels)

    def init(self, rng: np.random.Generator) -> Array:
        half = self.shape[1] // 2
        return np.concatenate([np.ones(half), np.zeros(half)])[None]

    def parameters(self, matrix: Tensor) -> dict[str, Tensor]:
        scale, shift = matrix[0].chunk(2)
        return {"weight": scale, "bias": shift}

    def whole(self, calls: Sequence[Call], matrix: Tensor) -> Tensor:
        total = []
        for x, delta in calls:
            unit = group_norm(x, self.module.num_groups, eps=self.module.eps).flatten(2)
            d = delta.reshape(unit.shape)
            total.append(torch.cat([torch.einsum("ncs,ncs->nc", d, unit), d.sum(dim=2)], dim=1))
        return torch.stack(total).sum(dim=0)[:, None]


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
    return _products_sum(gram, delta.transpose(1, 2) @ delta, lengths, size)


def _lengths(v: Tensor, bias: bool) -> Tensor:
    """The norm at each position, `(N, S)` float64."""
    norm = torch.linalg.vector_norm(v, dim=1, dtype=torch.float64)
    return (norm.square() + 1).sqrt() if bias else norm


def _products_sum(A: Tensor, D: Tensor, lengths: Tensor, size: int) -> Tensor:
    r"""The sum of `A * D` for each record, and what rounding may have taken from it.

    The terms of a Gram sum cancel, and each is off by at most $\epsilon$ times its vectors' sizes
    and lengths: without the room for that, a record could exceed its clip.
    """
    exact = (A * D).sum(dim=(1, 2), dtype=torch.float64)
    lost = size * torch.finfo(A.dtype).eps * lengths.sum(dim=1, dtype=torch.float64) ** 2
    return exact.clamp(min=0) + lost


def _moment(v: Tensor) -> Array:
    """The sum of `v v'` over records and positions of `(N, d, S)`, as float64."""
    flat = v.transpose(0, 1).flatten(1)
    return (flat @ flat.T).double().numpy()
