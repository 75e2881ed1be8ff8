"""Labelled records of a deep network: clipped sums of their gradients, scores, curvature."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsofim.core.arrays import Array, Scale
from fedsofim.core.sums import BoundedSum
from fedsofim.models import exact_sums
from fedsofim.models.layers import Call, Pair, transformed
from fedsofim.models.records import Covariances, Factors

if TYPE_CHECKING:
    from fedsofim.models.networks import DeepNetwork, Point


class DeepRecords:
    """Labelled records of a deep network.

    Args:
        network: the model.
        x: inputs, `(N, ...)`.
        y: labels, `(N,)`.
        factors: the transform that gradients go through before they are clipped, if any.
    """

    def __init__(
        self, network: "DeepNetwork", x: Tensor, y: Tensor, factors: list[Pair] | None = None
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

    def part(self, which: slice | Array | Tensor) -> "DeepRecords":
        """Some of the records."""
        factors = self.factors
        if factors is not None and not isinstance(which, slice):  # these lie elsewhere
            factors = [U._replace(known=None) for U in factors]
        return DeepRecords(self.network, self.x[which], self.y[which], factors)

    def with_transform(self, factors: Factors) -> "DeepRecords":
        """The same records, whose gradients are transformed before they are clipped.

        Norms of records under a factor that stays the same are not computed again.
        """
        pairs, before = self.network.factor_pairs(factors), self.factors or []
        stay = [torch.equal(U.A, old.A) for U, old in zip(pairs, before, strict=False)]
        known = [old.known if same else {} for old, same in zip(before, stay, strict=True)]
        known = known or [{} for _ in pairs]
        pairs = [U._replace(known=seen) for U, seen in zip(pairs, known, strict=True)]
        return DeepRecords(self.network, self.x, self.y, pairs)

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

    def unit(self, clip: Scale) -> float:
        """What 1 stands for in an exact gradient sum."""
        return exact_sums.grid(clip, exact_sums.DEEP_BITS)[1]

    def _fast_sum(self, theta: Array, C: float) -> Array:
        """The sum in floats; an example whose norm is not finite, or huge, contributes zero."""
        point, factors = self.network.at(theta), self._factors(theta)
        total = torch.zeros(self.network.size, dtype=point.matrices[0].dtype)
        plain = torch.zeros_like(total)  # what the transform is still to be applied to
        sums = self.network.split(total), self.network.split(plain)
        for batch in self.batches():
            batch._add_clipped(point, factors, C, sums)
        for out, before, U in zip(*sums, factors, strict=True):
            if U is not None and before.any():
                out.add_(transformed(before, U))
        return total.numpy()

    def _add_clipped(
        self,
        point: "Point",
        factors: Sequence[Pair | None],
        C: float,
        sums: tuple[list[Tensor], list[Tensor]],
    ) -> None:
        """Add the clipped gradients to the layers' sums: as they are, or before the transform."""
        passes = self.network.passes(point, self.x, self.y)
        used = []
        for i, (layer, calls) in enumerate(zip(self.network.layers.values(), passes, strict=True)):
            if calls:
                U = self._knowing(factors[i], calls)
                gradients = layer.gradients(calls, point.matrices[i], U)
                used.append((gradients, sums[gradients.plain][i]))
        weight = point.matrices[0].new_ones(self.size)
        if math.isfinite(C):
            limits = torch.finfo(weight.dtype)
            square = torch.stack([gradients.squares for gradients, _ in used]).sum(dim=0)
            norm = square.sqrt() * (1 + 8 * limits.eps)
            norm += (limits.tiny * self.network.size) ** 0.5  # squares may have underflowed
            w = C / norm.clamp(min=C)
            good = w >= limits.tiny / limits.eps  # smaller ones, of few digits, may be rounded up
            if not good.all():  # nor is zero times infinity zero
                return self.part(good)._add_clipped(point, factors, C, sums) if good.any() else None
            weight = w.to(weight)
        for gradients, out in used:
            gradients.add(weight, out)

    def _factors(self, theta: Array) -> Sequence[Pair | None]:
        if self.factors is None:
            return [None] * len(self.network.layers)
        kind = torch.from_numpy(np.empty(0, theta.dtype)).dtype
        return [U if U.A.dtype == kind else Pair(U.G.to(kind), U.A.to(kind)) for U in self.factors]

    def _knowing(self, U: Pair | None, calls: Sequence[Call]) -> Pair | None:
        """The factors, knowing inputs of earlier rounds only if they are these records."""
        same = len(calls) == 1 and _place(calls[0].x) == _place(self.x)
        return U if U is None or same else U._replace(known=None)

    def logits(self, theta: Array) -> Array:
        """The network's outputs, `(N, K)`."""
        return torch.cat([self.network.logits(theta, b.x) for b in self.batches()]).numpy()

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


def _place(x: Tensor) -> int:
    """Where a tensor's memory begins; that of records is theirs as long as they live."""
    return x.untyped_storage().data_ptr()
