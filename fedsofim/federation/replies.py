"""What a server accepts as a client's release: every reply is checked before it is used."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.federation.decoding import DecodingError, Encoded, decode, shown

# The prefix of the arrays that carry what simulated clients remember.
MEMORY = "state."
# No honest release comes near it, and the squares of what is below it are still numbers.
LARGEST = 1e15


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


class Asked(NamedTuple):
    """What one node was asked for, and what its answer must look like.

    Attributes:
        clients: the clients that it was asked for.
        t: the round.
        shape: of one client's release; `None` if it sends none, but adds to a sum.
        dtype: of a release.
        sizes: how many records each client said it has, where that is known.
        most: what a client can have charged itself by now; `None` where nothing is charged.
        memory: what all simulated clients remember, stacked; its names and shapes must agree.
    """

    clients: Sequence[int]
    t: int
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]
    sizes: Mapping[int, int]
    most: float | None
    memory: Mapping[str, Array]


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise BadReplyError(reason)


def read(
    arrays: Mapping[str, Encoded], values: Mapping[str, Any], asked: Asked
) -> dict[int, Part | BadReplyError]:
    """Check one reply, which may speak for several clients of a simulation.

    Arrays are compared with what was asked for before any of their bytes is read.

    Args:
        arrays: what it carries, by name.
        values: what it says beside them.
        asked: what it must be an answer to.

    Returns:
        For each client its part, or what is wrong with it.

    Raises:
        BadReplyError: if the reply as a whole can't be used.
    """
    if values.get("error"):
        raise BadReplyError(shown(values["error"]), refused=values.get("refused") is True)
    clients = list(asked.clients)
    t, speaks = values.get("round"), values.get("clients")
    _require(type(t) is int and t == asked.t, f"answers round {shown(t)}, not {asked.t}")
    _require(
        _integers(speaks) and speaks == clients,
        f"speaks for client {shown(speaks)}, not {shown(clients)}",
    )
    sizes = _sizes(values.get("sizes", []), asked)
    charged = _charged(values.get("charged"), asked.most)
    release, memory = _decoded(arrays, asked)
    parts: dict[int, Part | BadReplyError] = {}
    for k, (i, size) in enumerate(zip(clients, sizes, strict=True)):
        mine = {name: rows[k] for name, rows in memory.items()}
        parts[i] = _sound(release[k]) or Part(release[k], size, charged, mine)
    return parts


def _decoded(arrays: Mapping[str, Encoded], asked: Asked) -> tuple[Array, dict[str, Array]]:
    """The release and the memory of all clients, stacked, in the shapes that were asked for."""
    names, n = {MEMORY + name for name in asked.memory}, len(asked.clients)
    if asked.shape is not None:
        names |= {"release"}
        _require("release" in arrays, "has no release")
    _require(arrays.keys() == names, "does not carry the arrays that were asked for")
    release = np.zeros((n, 0), asked.dtype)
    try:
        if asked.shape is not None:
            release = decode(arrays["release"], (n, *asked.shape), asked.dtype)
        memory = {
            name: decode(arrays[MEMORY + name], (n, *rows.shape[1:]))  # exact noise: integers
            for name, rows in asked.memory.items()
        }
    except DecodingError as error:
        raise BadReplyError(str(error)) from None
    return release, memory


def _integers(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)


def _sizes(sizes: Any, asked: Asked) -> list[int]:
    """The number of records of each client, which must be what it said before."""
    good = _integers(sizes) and len(sizes) == len(asked.clients) and min(sizes) > 0
    _require(good, f"has sizes {shown(sizes)}")
    for i, size in zip(asked.clients, sizes, strict=True):
        known = asked.sizes.get(i, size)
        _require(size == known, f"has {shown(size)} records, and said {known} before")
    return list(sizes)


def _charged(charged: Any, most: float | None) -> float:
    """What a client says it has charged itself, if that is possible.

    Otherwise one client could end everybody's run by saying that it has spent a fortune.
    """
    if most is None:
        return 0.0
    good = isinstance(charged, float) and 0 <= charged <= most * (1 + 1e-9)
    _require(good, f"has charged itself {shown(charged)} releases, and can't have")
    return float(charged)


def _sound(release: Array) -> BadReplyError | None:
    """What is wrong with the numbers of a release; nothing if they can be used."""
    if not np.isfinite(release).all():
        return BadReplyError("is not finite")
    if release.size and np.abs(release).max() > LARGEST:
        return BadReplyError(f"has numbers beyond {LARGEST:g}")
    return None


def listed(reasons: Mapping[int, str]) -> list[str]:
    """What was wrong with each client, for people."""
    return [f"client {i}: {why}" for i, why in sorted(reasons.items())]


def summed_up(reasons: Mapping[int, str], most: int = 3) -> str:
    """The same in one short line: equal reasons once, and of many clients or reasons the first.

    >>> summed_up({3: "lost", 0: "lost", 4: "no reply"})
    'clients 0, 3: lost; client 4: no reply'
    >>> summed_up(dict.fromkeys(range(20), "lost"))
    'clients 0, 1, 2 and 17 others: lost'
    """
    groups: dict[str, list[int]] = {}
    for client, why in sorted(reasons.items()):
        groups.setdefault(why, []).append(client)
    told = []
    for why, clients in groups.items():
        names = ", ".join(map(str, clients[:most]))
        others = f" and {len(clients) - most} others" if len(clients) > most else ""
        told.append(f"client{'s' if len(clients) > 1 else ''} {names}{others}: {why}")
    more = [f"and {len(told) - most} other reasons"] if len(told) > most else []
    return "; ".join(told[:most] + more)
