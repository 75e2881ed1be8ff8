"""Arrays, and NamedTuples of them: as flat mappings for files and messages, or row by row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# One number, or one for each head of a stack, `(S, 1, 1)`.
Scale = float | Array


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


def take(state: Any, present: Array) -> Any:
    """What these clients remember, of a NamedTuple of arrays that are stacked by client."""
    return type(state)(*(rows[present] for rows in state))


def put(state: Any, present: Array, new: Sequence[Array]) -> Any:
    """The state with the rows of these clients replaced; all others are as they were."""
    out = room(state, new, everyone=False)
    fill(out, present, new)
    return out


def room(state: Any, new: Sequence[Array], *, everyone: bool) -> Any:
    """A copy of the state that has room for rows such as `new`; empty if all will be replaced."""
    # A state may begin as zeros of another type: the first round knows what is remembered.
    pairs = [(rows, np.asarray(fresh).dtype) for rows, fresh in zip(state, new, strict=True)]
    if everyone:
        return type(state)(*(np.empty(rows.shape, dtype) for rows, dtype in pairs))
    return type(state)(*(rows.astype(dtype) for rows, dtype in pairs))


def fill(state: Any, present: Array, new: Sequence[Array]) -> None:
    """Write the rows of these clients, in place."""
    for rows, fresh in zip(state, new, strict=True):
        rows[present] = fresh
