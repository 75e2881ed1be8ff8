r"""Gaussian noise from the operating system's entropy, for releases that leave the machine.

A seeded generator protects nothing if its seed is known, so a deployed client draws from
`os.urandom`: no seed exists, and nothing the server sends enters it.

What this protects against: prediction of the noise, from a seed, a known state or earlier noise. It
also makes it harder to reconstruct the draw behind one released number: a Box–Muller normal reaches
only some floating-point numbers, and which of them can betray the value under the noise (Mironov
2012). Each number here is the sum of four independent normals, halved, which is again standard
normal and has many more preimages (the construction of Holohan & Braghin 2021).

What it does not protect against: the rounding of the sum itself to a float is not a private
mechanism; a proof down to the last bit needs integer noise on a grid. Nor is the time it takes
independent of the numbers drawn.
"""

import math
import os
from typing import Any

import numpy as np

from fedsofim.core.arrays import Array

# How many normals make one number.
PARTS = 4
# Numbers made at a time, so that the memory stays small however large the release is.
BLOCK = 1 << 16


class SystemNoise:
    """A source of standard normal numbers that nobody can repeat, not even its owner."""

    def standard_normal(self, size: Any, dtype: Any = np.float64) -> Array:
        """Independent standard normal numbers of the given shape, rounded to `dtype`."""
        out = np.empty(size, dtype)
        flat = out.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            part = flat[start : start + BLOCK]
            part[:] = _normals(PARTS * part.size).reshape(PARTS, -1).sum(axis=0) / math.sqrt(PARTS)
        return out


def _normals(count: int) -> Array:
    """Normals by Box–Muller, from 53-bit uniforms."""
    pairs = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64) >> np.uint64(11)
    u, v = bits.astype(np.float64).reshape(2, pairs) * 2.0**-53
    radius = np.sqrt(-2 * np.log1p(-u))  # 1 - u is never zero
    angle = 2 * np.pi * v
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
