"""Independent random streams, derived from the run's seed and never shared.

Every random number of a simulated run comes from the stream of its purpose, round, client …, so
a result does not depend on the order in which clients are visited, on the engine, or on whether
the run was interrupted: there is no generator state to save.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import partial

import numpy as np


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
    key = (Purpose.SETUP_NOISE, -1 - t) if t < 0 else (Purpose.NOISE, t)
    return partial(stream, seed, *key)
