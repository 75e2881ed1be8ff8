"""Embedding, whose input is one token of many, and GroupNorm, which has few parameters."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm

from fedsofim.core.arrays import Array
from fedsofim.models.layers import (
    Call,
    Gradients,
    Layer,
    Moments,
    Pair,
    products_sum,
    second_moment,
)


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
        square = products_sum(same, bent @ bent.transpose(1, 2), bent.norm(dim=2), self.shape[0])

        def add(w: Tensor, out: Tensor) -> None:
            d = (delta * w[:, None, None]).flatten(0, 1)
            out.T.index_add_(0, ids.flatten(), d)

        return Gradients(square, add, plain=U is not None)

    def moments(self, calls: Sequence[Call], matrix: Tensor) -> Moments:
        ids, delta = self._sides(calls)
        counts = torch.bincount(ids.flatten(), minlength=self.shape[1])
        return Moments(second_moment(delta.transpose(1, 2)), counts.double().numpy(), ids.numel())

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
