"""What a server accepts as a client's release: every reply is checked before it is used."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array

# The prefix of the arrays that carry what simulated clients remember.
MEMORY = "state."


class BadReplyError(Exception):
    """A reply that can't be used, and why; `refused` if the client will not answer at all."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


class Part(NamedTuple):
    """One client's part in a round.

    Attributes:
        release: what it released.
        size: how many records it has; public.
        charged: what it has charged itself in this run so far, in releases of a clipped sum.
        memory: what it remembers, by name, if it is simulated.
    """

    release: Array
    size: int
    charged: float
    memory: dict[str, Array]


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise BadReplyError(reason)


def read(
    arrays: Mapping[str, Array],
    values: Mapping[str, Any],
    *,
    asked: Sequence[int],
    t: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    memory: Mapping[str, Array],
) -> dict[int, Part | BadReplyError]:
    """Check one reply, which may speak for several clients of a simulation.

    Args:
        arrays: what it carries, by name.
        values: what it says beside them.
        asked: the clients that this node was asked for.
        t: the round that was asked for.
        shape: of one client's release.
        dtype: of a release.
        memory: what all simulated clients remember, stacked; its names and shapes must agree.

    Returns:
        For each client its part, or what is wrong with it.

    Raises:
        BadReplyError: if the reply as a whole can't be used.
    """
    if values.get("error"):
        raise BadReplyError(str(values["error"]), refused=bool(values.get("refused")))
    _require(values.get("round") == t, f"answers round {values.get('round')}, not {t}")
    clients, sizes = values.get("clients"), values.get("sizes", [])
    _require(clients == list(asked), f"speaks for client {clients}, not {list(asked)}")
    counts = isinstance(sizes, list) and all(type(size) is int and size > 0 for size in sizes)
    _require(counts and len(sizes) == len(asked), f"has sizes {sizes}")
    release = arrays.get("release")
    _require(release is not None, "has no release")
    assert release is not None
    _require(release.dtype == dtype, f"has dtype {release.dtype}, not {dtype}")
    n = len(asked)
    _require(release.shape == (n, *shape), f"has shape {release.shape[1:]}, not {shape}")
    memories = {name: arrays.get(MEMORY + name) for name in memory}
    for name, rows in memories.items():
        fits = rows is not None and rows.shape == (n, *memory[name].shape[1:])
        _require(fits, f"does not say what it remembers as {name}")
    charged = values.get("charged", 0.0)
    _require(isinstance(charged, float) and charged >= 0, f"has charged {charged}")
    parts: dict[int, Part | BadReplyError] = {}
    for k, (i, size) in enumerate(zip(asked, sizes, strict=True)):
        mine = {name: rows[k] for name, rows in memories.items() if rows is not None}
        whole = np.isfinite(release[k]).all()
        part = Part(release[k], size, charged, mine)
        parts[i] = part if whole else BadReplyError("is not finite")
    return parts
