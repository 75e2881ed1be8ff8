r"""Deep networks of Linear and Conv2d layers, with per-record gradients layer by layer.

A layer's parameters are read as one matrix, `(out, in)` with the bias as a last column, where for a
convolution `in` is a patch. The gradient of one record is then $g = \sum_s \delta_s a_s^\top$ over
positions s, with $a_s$ the layer's input (and a 1 for the bias) and $\delta_s$ the gradient at its
output: one forward and one backward pass for many records give all of them.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import cross_entropy

from fedsofim.core.arrays import Array, Scale
from fedsofim.core.errors import require
from fedsofim.core.sums import BoundedSum
from fedsofim.models import exact_sums
from fedsofim.models.layers import matrix_shape, patches, positions
from fedsofim.models.modules import supported_layers
from fedsofim.models.records import Covariances, Factors


class _Pass(NamedTuple):
    """What a layer saw and what came back to it, at every position of every record.

    Attributes:
        a: inputs with a last 1 for the bias, `(N, in, S)`.
        delta: gradients of the records' own losses at the outputs, `(N, out, S)`.
    """

    a: Tensor
    delta: Tensor


class DeepNetwork:
    """A torch module as a function of one parameter array.

    Args:
        module: gives logits `(N, classes)`; it is not changed.
        classes: how many.
        microbatch: records whose gradients are held at a time.
    """

    def __init__(self, module: nn.Module, classes: int, microbatch: int = 128) -> None:
        self.module, self.classes, self.microbatch = module.eval(), classes, microbatch
        self.layers = supported_layers(module)
        self.shapes = [matrix_shape(layer) for layer in self.layers.values()]

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return sum(rows * columns for rows, columns in self.shapes)

    def init(self, rng: np.random.Generator) -> Array:
        r"""Initial parameters `(1, d)`, each layer uniform within $\pm 1/\sqrt{\text{fan in}}$."""
        theta = []
        for layer, (rows, columns) in zip(self.layers.values(), self.shapes, strict=True):
            bound = 1 / math.sqrt(columns - (layer.bias is not None))
            theta.append(rng.uniform(-bound, bound, rows * columns))
        return np.concatenate(theta).astype(np.float32)[None]

    def records(self, x: Array, y: Array) -> "DeepRecords":
        """Labelled records for this network."""
        labels = torch.as_tensor(np.asarray(y, np.int64))
        return DeepRecords(self, torch.as_tensor(np.ascontiguousarray(x)), labels)

    def matrices(self, theta: Array) -> list[Tensor]:
        """Each layer's parameters as a matrix, `(out, in)` with the bias last."""
        flat = torch.tensor(theta).reshape(-1)  # a copy: torch takes no read-only array
        parts = torch.split(flat, [rows * columns for rows, columns in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def factor_pairs(self, factors: Factors) -> list[tuple[Tensor, Tensor]]:
        """Each layer's `U_G` and `U_A`."""
        pairs = []
        g, a = (torch.tensor(f).reshape(-1) for f in factors)
        for rows, columns in self.shapes:
            pairs.append((g[: rows**2].view(rows, rows), a[: columns**2].view(columns, columns)))
            g, a = g[rows**2 :], a[columns**2 :]
        require(len(g) == len(a) == 0, "the transform's factors do not fit the model")
        return pairs

    def logits(self, theta: Array, x: Tensor) -> Tensor:
        """The network's outputs `(N, K)`, without gradients."""
        with torch.no_grad():
            return self._call(self.named(self.matrices(theta)), x)

    def autograd(self, theta: Array, x: Tensor, y: Tensor) -> list[Tensor]:
        """The gradient of the records' summed loss, a matrix a layer, as torch gives it."""
        matrices = [matrix.clone().requires_grad_() for matrix in self.matrices(theta)]
        loss = cross_entropy(self._call(self.named(matrices), x), y, reduction="sum")
        return list(torch.autograd.grad(loss, matrices, allow_unused=True, materialize_grads=True))

    def passes(self, theta: Array, x: Tensor, y: Tensor) -> list[list[_Pass]]:
        """What every layer saw, once for each time that the network used it."""
        parameters = self.named(self.matrices(theta))
        for value in parameters.values():
            value.requires_grad_()  # or nothing would be differentiated on the way to the layers
        seen: list[list[list[Any]]] = [[] for _ in self.layers]

        def watch(calls: list[list[Any]]) -> Any:
            def hook(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
                call = [patches(layer, inputs[0].detach()), None]
                calls.append(call)

                # On the tensor as it is now: an activation may change it in place.
                def keep(grad: Tensor) -> None:
                    call[1] = positions(layer, grad)

                output.register_hook(keep)  # type: ignore[no-untyped-call]

            return hook

        handles = [
            layer.register_forward_hook(watch(calls))
            for layer, calls in zip(self.layers.values(), seen, strict=True)
        ]
        try:
            out = self._call(parameters, x)
            cross_entropy(out, y, reduction="sum").backward()  # type: ignore[no-untyped-call]
        finally:
            for handle in handles:
                handle.remove()
        return [[_Pass(*call) for call in calls if call[1] is not None] for calls in seen]

    def named(self, matrices: Sequence[Tensor]) -> dict[str, Tensor]:
        """What the layers' matrices are as the module's parameters, by name."""
        parameters = {}
        for (name, layer), matrix in zip(self.layers.items(), matrices, strict=True):
            prefix, columns = f"{name}." if name else "", matrix.shape[1]
            if layer.bias is not None:
                parameters[f"{prefix}bias"] = matrix[:, -1]
                columns -= 1
            parameters[f"{prefix}weight"] = matrix[:, :columns].reshape(layer.weight.shape)
        return parameters

    def _call(self, named: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(self.module, named, (x,))
        return out


class DeepRecords:
    """Labelled records of a deep network.

    Args:
        network: the model.
        x: inputs, `(N, ...)`.
        y: labels, `(N,)`.
        factors: the transform that gradients go through before they are clipped, if any.
    """

    def __init__(
        self,
        network: DeepNetwork,
        x: Tensor,
        y: Tensor,
        factors: list[tuple[Tensor, Tensor]] | None = None,
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

    def part(self, which: slice | Array) -> "DeepRecords":
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
        gradients = []
        layers = self.network.passes(theta, self.x, self.y)
        for number, (calls, shape) in enumerate(zip(layers, self.network.shapes, strict=True)):
            g = self.x.new_zeros(self.size, *shape)
            for a, delta in calls:
                g += torch.bmm(delta, a.transpose(1, 2))
            if self.factors is not None:
                U_G, U_A = (U.to(g.dtype) for U in self.factors[number])
                g = U_G @ g @ U_A
            gradients.append(g)
        return gradients

    def gradient_sum(self, theta: Array, clip: Scale, exact: bool = False) -> BoundedSum:
        """The sum of the records' gradients, each clipped over all layers together to `clip`.

        If `exact`, a record adds integers whose norm was checked in integers. How torch rounds its
        gradient may depend on its place in the microbatch, but not on the others' numbers: the
        bound is for replacing a record, not for adding one, which moves others to other places.
        """
        C = float(np.asarray(clip).item())  # one network, never a stack
        if math.isinf(C):
            return BoundedSum(self._unclipped_sum(theta), clip)
        if not exact:
            return BoundedSum(self._fast_sum(theta, C), clip)
        B, unit = exact_sums.grid(C, exact_sums.DEEP_BITS)
        sums = np.zeros(self.network.size, np.int64)
        for batch in self.batches():
            g = torch.cat([part.flatten(1) for part in batch.gradients(theta)], dim=1)
            columns = exact_sums.clipped_integers(g.double().numpy().T, B, unit)
            sums += columns.sum(axis=1).astype(np.int64)
        return BoundedSum(sums.reshape(theta.shape), B, unit)

    def _unclipped_sum(self, theta: Array) -> Array:
        """The sum where no record is bounded: one backward pass for all, as plain SGD takes it."""
        total = [self.x.new_zeros(shape) for shape in self.network.shapes]
        for batch in self.batches():
            for sum_, g in zip(total, self.network.autograd(theta, batch.x, batch.y), strict=True):
                sum_ += g
        if self.factors is not None:  # it is linear, so that the sum can be transformed as a whole
            pairs = zip(total, self.factors, strict=True)
            total = [U_G.to(g.dtype) @ g @ U_A.to(g.dtype) for g, (U_G, U_A) in pairs]
        flat = torch.cat([sum_.reshape(-1) for sum_ in total])
        return flat.numpy().astype(theta.dtype, copy=False).reshape(theta.shape)

    def _fast_sum(self, theta: Array, C: float) -> Array:
        """The sum in floats; an example whose gradient is not finite contributes zero."""
        total = [self.x.new_zeros(shape) for shape in self.network.shapes]
        for batch in self.batches():
            gradients = batch.gradients(theta)
            weight = self.x.new_ones(batch.size)
            if math.isfinite(C):
                norms = [vector_norm(g.flatten(1), dim=1, dtype=torch.float64) for g in gradients]
                norm = torch.stack(norms).norm(dim=0) * (1 + 4 * torch.finfo(weight.dtype).eps)
                norm += torch.finfo(norm.dtype).tiny ** 0.5  # squares may have underflowed
                weight = torch.where(norm.isfinite(), C / norm.clamp(min=C), 0.0).to(weight)
                gradients = [g.nan_to_num(0.0, 0.0, 0.0) for g in gradients]
            for sum_, g in zip(total, gradients, strict=True):
                sum_ += torch.tensordot(weight, g, dims=1)
        flat = torch.cat([sum_.reshape(-1) for sum_ in total])
        return flat.numpy().astype(theta.dtype, copy=False).reshape(theta.shape)

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
        $\sum_s\delta_s\delta_s^\top$ over records.
        """
        shapes = self.network.shapes
        G = [np.zeros((rows, rows)) for rows, _ in shapes]
        A = [np.zeros((columns, columns)) for _, columns in shapes]
        seen = [0] * len(shapes)
        for batch in self.batches():
            for i, calls in enumerate(self.network.passes(theta, batch.x, batch.y)):
                for a, delta in calls:
                    A[i] += _second_moment(a)
                    G[i] += _second_moment(delta)
                    seen[i] += a.shape[0] * a.shape[2]
        return [
            Covariances(g / self.size, a / max(1, n)) for g, a, n in zip(G, A, seen, strict=True)
        ]


def _second_moment(v: Tensor) -> Array:
    """The sum of `v v'` over records and positions of `(N, d, S)`, as float64."""
    flat = v.transpose(0, 1).flatten(1)
    return (flat @ flat.T).double().numpy()
