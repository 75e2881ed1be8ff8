"""A user's own torch module: made, and tried before anything is trained or written."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedsofim.core.errors import ConfigError, require


def made(make: Callable[..., object], told: str, shape: Sequence[int], classes: int) -> nn.Module:
    """The module that a function makes, if it gives logits for records of this shape.

    Args:
        make: the user's function.
        told: what names it, which begins every error message.
        shape: of a record.
        classes: how many.
    """
    try:
        module = make(tuple(shape), classes)
    except ConfigError as error:
        raise ConfigError(f"{told}: {error}") from None
    except Exception as error:  # a function of the user's can fail in any way
        raise ConfigError(
            f"{told}: failed when called with the shape {tuple(shape)} and {classes} classes "
            f"({type(error).__name__}: {error})"
        ) from None
    require(isinstance(module, nn.Module), f"{told}: gave no torch module")
    assert isinstance(module, nn.Module)
    try:
        with torch.no_grad():
            out = module.eval()(torch.zeros(2, *shape))
    except Exception as error:
        raise ConfigError(
            f"{told}: its module failed on 2 records of shape {tuple(shape)} "
            f"({type(error).__name__}: {error})"
        ) from None
    given = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    require(
        given == (2, classes),
        f"{told}: for 2 records its module gives {given}; it must give logits (2, {classes})",
    )
    return module
