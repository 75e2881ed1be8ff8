"""Arrays, and NamedTuples of them: as flat mappings for files and messages, or row by row."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# One number, or one for each head of a stack, `(S, 1, 1)`.
Scale = float | Array
# Which clients: their numbers, or neighbours.
Who = Array | slice
T = TypeVar("T")


def of_the_last(make: Callable[[Array], T]) -> Callable[[Array], T]:
    """What remembers what it made of the last array, while that lives: many clients ask for a map.

    Nobody may change the array, nor what is made of it.

    >>> total = of_the_last(lambda x: x.sum(keepdims=True))
    >>> x = np.ones(3)
    >>> total(x) is total(x), total(x) is total(np.ones(3))
    (True, False)
    """
    known: tuple[Callable[[], Array | None], Any] = (lambda: None, None)

    @wraps(make)
    def remembering(x: Array) -> T:
        nonlocal known
        last, made = known
        if last() is not x:
            made = make(x)
            known = weakref.ref(x), made
        return cast(T, made)

    return remembering


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


def take(state: Any, present: Who) -> Any:
    """What these clients remember, of a NamedTuple of arrays that are stacked by client.

    Of neighbours it is a view, which nobody may change.
    """
    return type(state)(*(rows[present] for rows in state))


def put(state: Any, present: Who, new: Sequence[Array]) -> Any:
    """The state with the rows of these clients replaced; all others are as they were."""
    out = Successor(state)
    out.put(present, (None,) * len(state), new)
    return out.state


class Successor:
    """The state that follows another, as the rows of some clients after others are replaced.

    What nobody replaces is not copied.

    Args:
        state: a NamedTuple of arrays that are stacked by client; it stays as it is.
        all: whether every client's rows are put.
    """

    def __init__(self, state: Any, *, all: bool = False) -> None:
        self._before, self._rows, self._all, self._any = state, list(state), all, False

    def put(self, present: Who, old: Sequence[Array | None], new: Sequence[Array]) -> None:
        """Replace the rows of these clients where they are not the `old` ones, as `take` gave."""
        for k, (was, rows) in enumerate(zip(old, new, strict=True)):
            if rows is was:
                continue
            if self._rows[k] is self._before[k]:
                self._rows[k] = self._room(self._before[k], np.asarray(rows).dtype)
            self._rows[k][present] = rows
        self._any = True

    def _room(self, before: Array, dtype: np.dtype[Any]) -> Array:
        # A state may begin as zeros of another type: the first round knows what is remembered.
        if self._all and not self._any:
            return np.empty(before.shape, dtype)
        return before.astype(dtype)

    @property
    def state(self) -> Any:
        """What there is by now."""
        return type(self._before)(*self._rows)
