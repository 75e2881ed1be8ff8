"""Independent random streams, derived from the run's seed and never shared.

Every random number of a simulated run comes from the stream of its purpose, round, client …, so
a result does not depend on the order in which clients are visited, on the engine, or on whether
the run was interrupted: there is no generator state to save.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache, partial
from typing import Any

import numpy as np

from fedsofim.core.arrays import Array

# Who clients are: whole numbers, in a list or an array.
Ids = Sequence[int] | Array

try:
    from fedsofim_kernel import Stream  # models/streams.c, models/normals.c
except ImportError:  # it was installed without a compiler
    Stream = None


class Purpose(IntEnum):
    """What a stream is for; part of its key, so purposes never share numbers."""

    INIT = 0
    PARTITION = 1
    NOISE = 2
    SETUP_NOISE = 3
    HOLDOUT = 4
    PROBE = 5
    SAMPLING = 6
    PERSONAL_TEST = 7
    AUDIT = 8


def stream(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """The random stream of one purpose and key, such as a round and a client.

    >>> a, b = stream(0, Purpose.NOISE, 1, 2), stream(0, Purpose.NOISE, 1, 2)
    >>> bool(a.standard_normal() == b.standard_normal())
    True
    >>> bool(a.standard_normal() == stream(0, Purpose.NOISE, 2, 1).standard_normal())
    False
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *key))
    return np.random.Generator(np.random.PCG64(sequence))


def noise_of(seed: int, t: int) -> Callable[[int, int], np.random.Generator]:
    """The noise streams of a simulated round: by client, and the number of the draw in the round.

    Every engine takes its noise from here, so all of them draw the same.

    Args:
        seed: of the run.
        t: the round, from 0; negative for what is released before the first one, -1 the last.

    >>> one, other = noise_of(0, 3)(7, 0), stream(0, Purpose.NOISE, 3, 7, 0)
    >>> bool(one.standard_normal() == other.standard_normal())
    True
    """
    return partial(stream, seed, *_of_round(t))


def fill_noise(out: Array, seed: int, t: int, clients: Ids, draw: int) -> None:
    """Fill each client's row of `out` with standard normals, the first of its stream in `noise_of`.

    A stream takes longer to make than it takes to draw hundreds of numbers, so the kernel has one
    that can be given another key, and draws the numbers of all clients in one call.

    >>> row = np.empty((1, 3))
    >>> fill_noise(row, 0, 3, [7], 0)
    >>> bool((row == noise_of(0, 3)(7, 0).standard_normal(3)).all())
    True
    """
    if _in_kernel(out):
        _stream_of_round(seed, t).normals(out.reshape(len(out), -1), _ids(clients), draw)
        return
    if Stream is not None:
        bits = _stream_of_round(seed, t)
        rng = np.random.Generator(bits)
        for row, i in zip(out, clients, strict=True):
            bits.seek(int(i), draw)
            rng.standard_normal(dtype=out.dtype, out=row)
        return
    for row, i in zip(out, clients, strict=True):
        noise_of(seed, t)(int(i), draw).standard_normal(dtype=out.dtype, out=row)


def add_noise(
    rows: Array,
    std: float,
    sizes: Array,
    seed: int,
    t: int,
    clients: Ids,
    draw: int,
) -> None:
    """Make each client's row `(row + std * noise) / size`, with the noise of `fill_noise`.

    The bits are those of the three operations one after another; the kernel does them in one pass.

    Args:
        rows: stacked by client, changed in place.
        std: of the noise.
        sizes: what to divide each row by, `(n,)`.
        seed: as `noise_of` takes it; and so is `t`.
        t: the round.
        clients: whose rows.
        draw: the number of the draw within the round.
    """
    sizes = np.asarray(sizes, rows.dtype)
    if _in_kernel(rows):
        flat, ids = rows.reshape(len(rows), -1), _ids(clients)
        _stream_of_round(seed, t).normals(flat, ids, draw, std, sizes)
        return
    noise = np.empty(rows.shape, rows.dtype)
    fill_noise(noise, seed, t, clients, draw)
    rows += noise * std
    rows /= sizes.reshape(-1, *(1,) * (rows.ndim - 1))


def _in_kernel(rows: Array) -> bool:
    """Whether the kernel draws such rows."""
    plain = rows.dtype == np.float32 and rows.flags.c_contiguous
    return plain and Stream is not None and _draws_as_numpy()


@cache
def _draws_as_numpy() -> bool:
    """Whether the kernel's normals are those of the NumPy that is here; it may change them."""
    ours = np.empty((8, 4096), np.float32)
    _stream_of_round(1, 2).normals(ours, _ids(range(8)), 3)
    numpys = [noise_of(1, 2)(i, 3).standard_normal(4096, np.float32) for i in range(8)]
    return np.array_equal(ours, np.stack(numpys))


def _stream_of_round(seed: int, t: int) -> Any:
    first = _words(seed)
    words = [*first, *[0] * (4 - len(first))]  # as SeedSequence does before a key
    words += [word for number in _of_round(t) for word in _words(number)]
    return Stream(np.array(words, np.uint32).tobytes())


def _ids(clients: Ids) -> Array:
    return np.asarray(clients, np.uint32)


def _of_round(t: int) -> tuple[Purpose, int]:
    return (Purpose.SETUP_NOISE, -1 - t) if t < 0 else (Purpose.NOISE, t)


def _words(number: int) -> list[int]:
    """A number in words of 32 bits, the lowest first; zero is one word."""
    return [number >> shift & 0xFFFFFFFF for shift in range(0, max(1, number.bit_length()), 32)]
