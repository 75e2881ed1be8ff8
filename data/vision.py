"""Imports torch and torchvision, which are optional and do not always fit together.

A torchvision built for CUDA beside a CPU build of torch cannot load its compiled operators, and
its import then fails while it describes two of them. Nothing here uses those operators, so
declaring them is enough.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from fedsofim.core.errors import ConfigError

MISSING_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# Operators live as long as the library that declared them.
_declared: list[Any] = []


def optional(name: str, needed: str = "images need", extra: str = "vision") -> ModuleType:
    """Import a module of an extra, or say what needs it and how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{needed} {error.name}, which is not installed: pip install 'fedsofim[{extra}]'"
        ) from None


def torchvision(submodule: str = "") -> ModuleType:
    """Import torchvision, or one of its submodules, beside whatever torch there is."""
    name = f"torchvision.{submodule}" if submodule else "torchvision"
    optional("torch")
    try:
        return optional(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error) or _declared:
            raise
    _declare_operators()
    return optional(name)


def _declare_operators() -> None:
    import torch

    for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[module]  # what the failed import left behind
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in MISSING_OPERATORS:
        library.define(operator)
    _declared.append(library)
