"""Deep networks as functions of one parameter array, with clipped sums of records' gradients.

One forward and one backward pass for many records show every layer what went in and what came back;
`layers.py` says what follows from that. Parameters have no gradients on the way: nothing is
differentiated but activations.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedsofim.core.arrays import Array, Scale
from fedsofim.core.errors import require
from fedsofim.core.sums import BoundedSum
from fedsofim.models import exact_sums
from fedsofim.models.fitting import layers_of
from fedsofim.models.layers import Call, Pair, transformed
from fedsofim.models.records import Covariances, Factors


class Point(NamedTuple):
    """Parameters, as a matrix a layer and as the module's own, by name."""

    matrices: list[Tensor]
    named: dict[str, Tensor]


class DeepNetwork:
    """A torch module as a function of one parameter array.

    Args:
        module: gives logits `(N, classes)`; its parameters are not changed.
        classes: how many.
        microbatch: records that are passed through at a time.
        opacus: whether Opacus takes the layers that are not ours.
        vocabulary: how many tokens there are, if records are sequences of them; else 0.
    """

    def __init__(
        self,
        module: nn.Module,
        classes: int,
        microbatch: int = 128,
        *,
        opacus: bool = False,
        vocabulary: int = 0,
    ) -> None:
        if opacus:
            from fedsofim.models.opacus_layers import rewritten

            module = rewritten(module)
        # What differs in training is refused, but torch takes other ways through attention.
        self.module = module.train(opacus)
        self.classes, self.microbatch, self.vocabulary = classes, microbatch, vocabulary
        self.layers = layers_of(module, opacus)
        self.shapes = [layer.shape for layer in self.layers.values()]

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return sum(rows * columns for rows, columns in self.shapes)

    def init(self, rng: np.random.Generator) -> Array:
        """Initial parameters `(1, d)`, layer by layer."""
        theta = [layer.init(rng).ravel() for layer in self.layers.values()]
        return np.concatenate(theta).astype(np.float32)[None]

    def records(self, x: Array, y: Array) -> "DeepRecords":
        """Labelled records for this network."""
        if self.vocabulary and x.size:
            inside = x.min() >= 0 and x.max() < self.vocabulary
            whole = bool((x == np.rint(x)).all())
            require(
                whole and inside,
                f"records: tokens must be whole numbers from 0 to {self.vocabulary - 1}",
            )
        labels = torch.as_tensor(np.asarray(y, np.int64))
        return DeepRecords(self, torch.as_tensor(np.ascontiguousarray(x)), labels)

    def matrices(self, theta: Array) -> list[Tensor]:
        """Each layer's parameters as a matrix, `(out, in)`."""
        return self.split(torch.tensor(theta).reshape(-1))  # a copy: torch takes no read-only array

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of the layers' matrices in one array."""
        parts = torch.split(flat, [rows * columns for rows, columns in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def factor_pairs(self, factors: Factors) -> list[Pair]:
        """Each layer's `U_G` and `U_A`."""
        sizes = [layer.factor_sizes for layer in self.layers.values()]
        g, a = (torch.tensor(f).reshape(-1) for f in factors)
        fit = len(g) == sum(s[0] for s in sizes) and len(a) == sum(s[1] for s in sizes)
        require(fit, "the transform's factors do not fit the model")
        gs, as_ = (torch.split(f, [s[i] for s in sizes]) for i, f in enumerate((g, a)))
        pairs = []
        for layer, U_G, U_A in zip(self.layers.values(), gs, as_, strict=True):
            rows, columns = layer.shape
            U_A = U_A if layer.diagonal else U_A.view(columns, columns)
            pairs.append(Pair(U_G.view(rows, rows), U_A))
        return pairs

    def at(self, theta: Array) -> Point:
        """The parameters as the module takes them."""
        matrices = self.matrices(theta)
        return Point(matrices, self.named(matrices))

    def logits(self, theta: Array, x: Tensor) -> Tensor:
        """The network's outputs `(N, K)`, without gradients."""
        with torch.no_grad():
            return self._call(self.at(theta).named, x)

    def autograd(self, theta: Array, x: Tensor, y: Tensor) -> list[Tensor]:
        """The gradient of the records' summed loss, a matrix a layer, as torch gives it."""
        matrices = [matrix.clone().requires_grad_() for matrix in self.matrices(theta)]
        loss = cross_entropy(self._call(self.named(matrices), x), y, reduction="sum")
        return list(torch.autograd.grad(loss, matrices, allow_unused=True, materialize_grads=True))

    def passes(self, point: Point, x: Tensor, y: Tensor) -> list[list[Call]]:
        """What every layer saw, once for each time that the network used it."""
        seen: list[list[list[Any]]] = [[] for _ in self.layers]
        handles = [
            layer.module.register_forward_hook(_watch(calls))
            for layer, calls in zip(self.layers.values(), seen, strict=True)
        ]
        try:
            loss = cross_entropy(self._call(point.named, x), y, reduction="sum")
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            for handle in handles:
                handle.remove()
        return [[Call(*call) for call in calls if call[1] is not None] for calls in seen]

    def gradients(self, theta: Array, x: Tensor, y: Tensor) -> list[Tensor]:
        """Every record's gradient, one `(N, out, in)` a layer."""
        point = self.at(theta)
        passes = self.passes(point, x, y)
        return [
            layer.whole(calls, matrix) if calls else matrix.new_zeros(len(x), *layer.shape)
            for layer, matrix, calls in zip(
                self.layers.values(), point.matrices, passes, strict=True
            )
        ]

    def named(self, matrices: Sequence[Tensor]) -> dict[str, Tensor]:
        """What the layers' matrices are as the module's parameters, by name."""
        return {
            f"{name}.{key}" if name else key: value
            for (name, layer), matrix in zip(self.layers.items(), matrices, strict=True)
            for key, value in layer.parameters(matrix).items()
        }

    def _call(self, named: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(self.module, named, (x,))
        return out


def _watch(calls: list[list[Any]]) -> Any:
    """A hook that keeps what goes into a layer, and what comes back to its output."""

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> Tensor | None:
        require(
            isinstance(output, Tensor) and len(inputs) == 1,
            f"model: {type(layer).__name__} takes or gives more than one tensor, and its gradients "
            "for single records are not known",
        )
        call = [inputs[0].detach(), None]
        calls.append(call)
        first = not output.requires_grad
        if first:  # nothing before it is differentiated; a copy, which may be changed in place
            output = output.requires_grad_().clone()

        # On the tensor as it is now: an activation may change it in place.
        def keep(grad: Tensor) -> None:
            call[1] = grad

        output.register_hook(keep)
        return output if first else None

    return hook


class DeepRecords:
    """Labelled records of a deep network.

    Args:
        network: the model.
        x: inputs, `(N, ...)`.
        y: labels, `(N,)`.
        factors: the transform that gradients go through before they are clipped, if any.
    """

    def __init__(
        self, network: DeepNetwork, x: Tensor, y: Tensor, factors: list[Pair] | None = None
    ) -> None:
        self.network, self.x, self.y, self.factors = network, x, y, factors

    @property
    def size(self) -> int:
        """How many records there are."""
        return len(self.y)

    @property
    def labels(self) -> Array:
        """The class of each record, `(N,)`."""
        return self.y.numpy()

    def part(self, which: slice | Tensor) -> "DeepRecords":
        """Some of the records."""
        return DeepRecords(self.network, self.x[which], self.y[which], self.factors)

    def with_transform(self, factors: Factors) -> "DeepRecords":
        """The same records, whose gradients are transformed before they are clipped."""
        return DeepRecords(self.network, self.x, self.y, self.network.factor_pairs(factors))

    def batches(self) -> Iterator["DeepRecords"]:
        """Parts of at most a microbatch, in order."""
        for start in range(0, self.size, self.network.microbatch):
            yield self.part(slice(start, start + self.network.microbatch))

    def gradients(self, theta: Array) -> list[Tensor]:
        """Every record's gradient, transformed if asked, one `(N, out, in)` a layer."""
        gradients = self.network.gradients(theta, self.x, self.y)
        return [transformed(g, U) for g, U in zip(gradients, self._factors(theta), strict=True)]

    def gradient_sum(self, theta: Array, clip: Scale, exact: bool = False) -> BoundedSum:
        """The sum of the records' gradients, each clipped over all layers together to `clip`.

        If `exact`, a record adds integers whose norm was checked in integers. How torch rounds its
        gradient may depend on its place in the microbatch, but not on the others' numbers: the
        bound is for replacing a record, not for adding one, which moves others to other places.
        """
        C = float(np.asarray(clip).item())  # one network, never a stack
        if not exact or math.isinf(C):
            value = self._fast_sum(theta, C).astype(theta.dtype, copy=False)
            return BoundedSum(value.reshape(theta.shape), clip)
        B, unit = exact_sums.grid(C, exact_sums.DEEP_BITS)
        sums = np.zeros(self.network.size, np.int64)
        for batch in self.batches():
            g = torch.cat([part.flatten(1) for part in batch.gradients(theta)], dim=1)
            columns = exact_sums.clipped_integers(g.double().numpy().T, B, unit)
            sums += columns.sum(axis=1).astype(np.int64)
        return BoundedSum(sums.reshape(theta.shape), B, unit)

    def _fast_sum(self, theta: Array, C: float) -> Array:
        """The sum in floats; an example whose norm is not finite contributes zero."""
        point, factors = self.network.at(theta), self._factors(theta)
        total = torch.zeros(self.network.size, dtype=point.matrices[0].dtype)
        sums = self.network.split(total)
        for batch in self.batches():
            batch._add_clipped(point, factors, C, sums)
        return total.numpy()

    def _add_clipped(
        self, point: Point, factors: Sequence[Pair | None], C: float, sums: list[Tensor]
    ) -> None:
        """Add the clipped gradients to the layers' sums."""
        passes = self.network.passes(point, self.x, self.y)
        used = [
            (layer.gradients(calls, matrix, U), out)
            for layer, calls, matrix, U, out in zip(
                self.network.layers.values(), passes, point.matrices, factors, sums, strict=True
            )
            if calls
        ]
        weight = sums[0].new_ones(self.size)
        if math.isfinite(C):
            limits = torch.finfo(weight.dtype)
            square = torch.stack([gradients.squares for gradients, _ in used]).sum(dim=0)
            norm = square.sqrt() * (1 + 8 * limits.eps)
            norm += (limits.tiny * self.network.size) ** 0.5  # squares may have underflowed
            good = norm.isfinite()
            if not good.all():  # zero times infinity is not zero
                return self.part(good)._add_clipped(point, factors, C, sums) if good.any() else None
            weight = (C / norm.clamp(min=C)).to(weight)
        for gradients, out in used:
            gradients.add(weight, out)

    def _factors(self, theta: Array) -> Sequence[Pair | None]:
        if self.factors is None:
            return [None] * len(self.network.layers)
        kind = torch.from_numpy(np.empty(0, theta.dtype)).dtype
        return [Pair(U.G.to(kind), U.A.to(kind)) for U in self.factors]

    def evaluate(self, theta: Array) -> tuple[float, float]:
        """Accuracy and mean cross-entropy."""
        correct, loss = 0, 0.0
        for batch in self.batches():
            z = self.network.logits(theta, batch.x)
            correct += int((z.argmax(dim=1) == batch.y).sum())
            loss += float(cross_entropy(z, batch.y, reduction="sum"))
        return correct / self.size, loss / self.size

    def predict(self, theta: Array) -> Array:
        """The most likely class of each record, `(N,)`."""
        z = [self.network.logits(theta, batch.x).argmax(dim=1) for batch in self.batches()]
        return torch.cat(z).numpy()

    def curvature(self, theta: Array) -> list[Covariances]:
        r"""Each layer's Kronecker factors (Martens & Grosse 2015; Grosse & Martens 2016).

        $A$ is the mean of $aa^\top$ over records and positions, $G$ that of
        $\sum_s\delta_s\delta_s^\top$ over records. Where A is a diagonal, only that is given.
        """
        layers = list(self.network.layers.values())
        G: list[Any] = [np.zeros((layer.shape[0],) * 2) for layer in layers]
        A: list[Any] = [np.zeros((layer.shape[1],) * (2 - layer.diagonal)) for layer in layers]
        positions = [0] * len(layers)
        point = self.network.at(theta)
        for batch in self.batches():
            passes = self.network.passes(point, batch.x, batch.y)
            for i, (layer, calls) in enumerate(zip(layers, passes, strict=True)):
                if calls:
                    moments = layer.moments(calls, point.matrices[i])
                    G[i] += moments.G
                    A[i] += moments.A
                    positions[i] += moments.positions
        return [
            Covariances(g / self.size, a / max(1, n))
            for g, a, n in zip(G, A, positions, strict=True)
        ]
