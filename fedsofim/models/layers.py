r"""Layers read as matrices: norms of single records' gradients, without the gradients.

A layer's parameters are one matrix, `(out, in)` with the bias as a last column. The gradient of one
record is $g = \sum_s \delta_s a_s^\top$ over positions s, with $a_s$ the layer's input (a patch, of
a convolution; a 1 for the bias) and $\delta_s$ the loss's gradient at its output. Its norm needs no
g: $\lVert g\rVert^2 = \sum_{s,t} (a_s^\top a_t)(\delta_s^\top \delta_t)$ (Goodfellow 2015, Li et
al. 2022). Where there are many positions and few parameters, g itself is cheaper (Bu et al. 2022).
A clipped sum is $\sum_i w_i g_i$, one matrix product of what was kept: no second pass backwards.

Under a transform $g \to U_G\,g\,U_A$ the same holds for $U_A^\top a_s$ and $U_G\delta_s$.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedsofim.core.arrays import Array

M = TypeVar("M", bound=nn.Module)


class Call(NamedTuple):
    """One use of a layer.

    Attributes:
        x: what went in, `(N, ...)`.
        delta: the gradients of the records' own losses at what came out, `(N, ...)`.
    """

    x: Tensor
    delta: Tensor


class Pair(NamedTuple):
    """A layer's factors, `(out, out)`, and `(in, in)` or a diagonal `(in,)`.

    Attributes:
        G: on the side of the outputs.
        A: on the side of the inputs.
        known: the norms of inputs under A, by where they lie, if they are the records themselves.
    """

    G: Tensor
    A: Tensor
    known: dict[tuple[int, ...], Tensor] | None = None


class Gradients(NamedTuple):
    """The gradients of some records in one layer, as far as a clipped sum asks for them.

    Attributes:
        squares: the square of each one's norm, never too small, `(N,)` float64.
        add: adds their sum, with the weights `(N,)`, to a matrix `(out, in)`.
        plain: whether that is the sum before the transform: it is linear, and once is enough.
    """

    squares: Tensor
    add: Callable[[Tensor, Tensor], None]
    plain: bool = False


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


def products_sum(A: Tensor, D: Tensor, lengths: Tensor, size: int) -> Tensor:
    r"""The sum of `A * D` for each record, and what rounding may have taken from it.

    The terms of a Gram sum cancel, and each is off by at most $\epsilon$ times its vectors' sizes
    and lengths: without the room for that, a record could exceed its clip.
    """
    exact = (A * D).sum(dim=(1, 2), dtype=torch.float64)
    lost = size * torch.finfo(A.dtype).eps * lengths.sum(dim=1, dtype=torch.float64) ** 2
    return exact.clamp(min=0) + lost


def second_moment(v: Tensor) -> Array:
    """The sum of `v v'` over records and positions of `(N, d, S)`, as float64."""
    flat = v.transpose(0, 1).flatten(1)
    return (flat @ flat.T).double().numpy()
