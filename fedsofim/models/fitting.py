"""Which modules can be trained: their layers are known, and no record changes another's gradient.

The clip bounds what a record does to its own gradient, and nothing else.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.models.dense_layers import ConvLayer, LinearLayer
from fedsofim.models.layers import Layer
from fedsofim.models.small_layers import EmbeddingLayer, GroupNormLayer

if TYPE_CHECKING:
    from fedsofim.models.networks import DeepNetwork

TRIED = 5  # records of the try
OURS = "Linear, Conv2d with zero padding and one group, GroupNorm and Embedding"


def layers_of(module: nn.Module, opacus: bool = False) -> dict[str, Layer[Any]]:
    """The layers that hold parameters, by name, or an error that names those that do not fit.

    Args:
        module: the network.
        opacus: whether Opacus takes the layers that are not ours.
    """
    layers: dict[str, Layer[Any]] = {}
    refused: list[str] = []
    seen: set[int] = set()
    done: list[str] = []  # of what is taken with all inside it
    for name, part in module.named_modules():
        if any(name.startswith(inside) for inside in done):
            continue
        own = _own(part, opacus)
        layer = None if seen & own else _layer(part, opacus and bool(own))
        if layer is not None:
            layers[name] = layer
            done += [f"{name}." if name else ""] if layer.entire else []
        elif own or _mixes(part) or list(part.buffers(recurse=False)):
            why = " (shares its parameters)" if seen & own else ""
            refused.append(f"{name or 'the module itself'}: {type(part).__name__}{why}")
        seen |= own
    also = ", or what Opacus knows," if opacus else " (model.grads=opacus knows more),"
    require(
        not refused,
        f"model: layers must be {OURS}{also} and without BatchNorm or Dropout; not so: "
        f"{', '.join(refused)}",
    )
    require(bool(layers), "model: has no layer with parameters")
    return layers


def _own(part: nn.Module, opacus: bool) -> set[int]:
    """The parameters that a module has itself."""
    if opacus:
        from fedsofim.models.opacus_layers import is_made_of_layers

        if is_made_of_layers(part):
            return set()
    return {id(p) for p in part.parameters(recurse=False)}


def _layer(part: Any, opacus: bool) -> Layer[Any] | None:
    """How a layer's gradients are computed, if they can be."""
    kind = type(part)  # a subclass may compute something else
    if kind is nn.Linear:
        return LinearLayer(part)
    if kind is nn.Conv2d and part.groups == 1 and part.padding_mode == "zeros":
        return ConvLayer(part)
    if kind is nn.GroupNorm and part.affine and part.bias is not None:
        return GroupNormLayer(part)
    if kind is nn.Embedding:
        alone = part.max_norm is None and not part.scale_grad_by_freq
        return EmbeddingLayer(part) if alone else None
    if not opacus or _mixes(part) or list(part.buffers()):
        return None
    from fedsofim.models.opacus_layers import Sampled, is_linear

    if is_linear(part):
        return LinearLayer(part)
    try:
        return Sampled(part)
    except NotImplementedError:
        return None


def _mixes(part: nn.Module) -> bool:
    """Whether a layer computes with other records, or by chance."""
    if isinstance(part, nn.modules.instancenorm._InstanceNorm):
        return part.track_running_stats
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    inside = getattr(part, "dropout", 0.0)  # of Opacus's LSTM and attention
    by_chance = isinstance(inside, float) and inside > 0
    return by_chance or isinstance(part, nn.modules.batchnorm._BatchNorm)


def require_separate(network: "DeepNetwork", shape: Sequence[int]) -> None:
    """Refuse a network in which one record changes what it makes of another, as far as a try shows.

    Also one whose gradients are not those of its layers, such as where a layer's weight is used
    without the layer: each record's gradient is compared with what torch says of the record alone.

    Args:
        network: the network.
        shape: of a record; the try is made with noise.
    """
    rng, K = np.random.default_rng(0), network.classes
    theta = network.init(rng)

    def draw(count: int, scale: float) -> Array:
        if network.vocabulary:
            return rng.integers(0, network.vocabulary, (count, *shape)).astype(np.float32)
        return scale * rng.standard_normal((count, *shape), np.float32)

    x, y = draw(TRIED, 1), rng.integers(0, K, TRIED)
    tried = network.records(x, y)
    before = network.logits(theta, tried.x)
    given = tuple(before.shape)
    require(given == (TRIED, K), f"model: gives {given} for {TRIED} records, not {(TRIED, K)}")
    for size in (10, 1e6):  # a weak mixture shows with a large record
        other = network.records(np.concatenate([draw(1, size), x[1:]]), y)
        after = network.logits(theta, other.x)
        require(
            torch.allclose(before[1:], after[1:], rtol=1e-3, atol=1e-4, equal_nan=True),
            "model: what it makes of a record depends on the others, so that no clip bounds what a "
            "record does; such as a mean over the batch",
        )
    _require_gradients(network, theta, tried.x, tried.y)


def _require_gradients(network: "DeepNetwork", theta: Array, x: Tensor, y: Tensor) -> None:
    """Refuse a network whose gradients in a batch are not those of each record alone."""
    try:
        batch = network.gradients(theta, x, y)
        singly = [network.autograd(theta, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    except ConfigError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        raise ConfigError(f"model: the gradients of its layers cannot be had ({error})") from None
    for i, alone in enumerate(singly):
        for name, ours, right in zip(network.layers, batch, alone, strict=True):
            require(
                float((ours[i] - right).norm()) <= 1e-3 * float(right.norm()) + 1e-5,
                f"model: in a batch, a record's gradient in {name or 'the module itself'} is not "
                "what it is alone; records must come first in every layer, which must be called "
                "by the network, and not only its weight used",
            )
