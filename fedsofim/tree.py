"""Nested NamedTuples of arrays, as flat mappings that files and messages can carry."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def flatten(state: Any, prefix: str = "") -> dict[str, Any]:
    """The arrays of nested NamedTuples, by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in state._asdict().items():
        if isinstance(value, tuple):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def unflatten(blank: Any, flat: Mapping[str, Any], prefix: str = "") -> Any:
    """The inverse of `flatten`, in the structure of `blank`, whose shapes must agree."""
    values = {}
    for name, value in blank._asdict().items():
        if isinstance(value, tuple):
            values[name] = unflatten(value, flat, f"{prefix}{name}.")
            continue
        saved = flat[prefix + name]
        if saved.shape != np.shape(value):
            raise ValueError(f"{prefix}{name} is {saved.shape}, not {np.shape(value)}")
        values[name] = saved if isinstance(value, np.ndarray) else type(value)(saved)
    return type(blank)(**values)
