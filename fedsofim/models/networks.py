"""Deep networks as functions of one parameter array, with clipped sums of records' gradients.

One forward and one backward pass for many records show every layer what went in and what came back;
`layers.py` says what follows from that. Parameters have no gradients on the way: nothing is
differentiated but activations.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.models.deep_records import DeepRecords
from fedsofim.models.fitting import layers_of
from fedsofim.models.layers import Call, Pair
from fedsofim.models.records import Factors


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

    def records(self, x: Array, y: Array) -> DeepRecords:
        """Labelled records for this network."""
        x = np.asarray(x)
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

    def state(self, theta: Array) -> dict[str, Tensor]:
        """The parameters as the module's state dict names them."""
        return self.at(theta).named

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
