"""Layers that are not ours, by Opacus's rules for the gradients of single records.

Opacus (Yousefpour et al. 2021, https://arxiv.org/abs/2109.12298) knows many more layers, and falls
back on `torch.func` for those that it does not. It writes LSTM, GRU and MultiheadAttention anew,
from layers that can be watched.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.functorch import prepare_layer
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN, RNNLinear
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from fedsofim.core.arrays import Array
from fedsofim.models.layers import Call, Layer

REWRITTEN = (nn.LSTM, nn.GRU, nn.MultiheadAttention)
SAMPLERS: dict[type, Any] = GradSampleModule.GRAD_SAMPLERS


def rewritten(module: nn.Module) -> nn.Module:
    """A copy of the module, with Opacus's LSTM, GRU and MultiheadAttention for torch's."""
    module = copy.deepcopy(module)
    for name, part in list(module.named_modules()):
        if isinstance(part, REWRITTEN) and name:
            new: nn.Module = ModuleValidator.FIXERS[type(part)](part)
            module.set_submodule(name, new.to(next(part.parameters()).dtype))
    return module


def is_linear(module: nn.Module) -> bool:
    """Whether a layer is what Opacus's recurrent layers are made of: torch's Linear."""
    return type(module) is RNNLinear


def is_made_of_layers(module: nn.Module) -> bool:
    """Whether it is one of Opacus's recurrent layers, which show their parts' parameters as own."""
    return isinstance(module, DPRNN | DPLSTM | DPGRU)


class Sampled(Layer[nn.Module]):
    """A layer whose gradients Opacus computes, `(1, d)`; they are held."""

    diagonal = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.sampler = SAMPLERS.get(type(module))
        self.entire = self.sampler is None
        self.own = dict(module.named_parameters(recurse=self.entire))
        self.shape = (1, sum(p.numel() for p in self.own.values()))
        if self.sampler is None:
            prepare_layer(module)  # by torch.func, children and all

    def init(self, rng: np.random.Generator) -> Array:
        """What torch starts as one constant stays; the rest is uniform by its fan in."""
        parts = []
        for p in self.own.values():
            value = p.detach().double().numpy().ravel()
            if value.min() != value.max():
                bound = 1 / math.sqrt(p[0].numel() if p.ndim > 1 else p.numel())
                value = rng.uniform(-bound, bound, p.numel())
            parts.append(value)
        return np.concatenate(parts)[None]

    def parameters(self, matrix: Tensor) -> dict[str, Tensor]:
        parts = torch.split(matrix[0], [p.numel() for p in self.own.values()])
        return {k: v.view(p.shape) for (k, p), v in zip(self.own.items(), parts, strict=True)}

    def whole(self, calls: Sequence[Call], matrix: Tensor) -> Tensor:
        total = [self._sampled(call, matrix) for call in calls]
        return torch.stack(total).sum(dim=0)[:, None]

    def _sampled(self, call: Call, matrix: Tensor) -> Tensor:
        if self.sampler is None:
            values = list(self.parameters(matrix).values())
            compute: Any = self.module.ft_compute_sample_grad
            grads = compute(values, call.x, call.delta)
        else:
            found = self.sampler(self.module, [call.x], call.delta)
            grads = [found[p] for p in self.own.values()]
        return torch.cat([g.detach().flatten(1) for g in grads], dim=1)
