"""The noise that devices once drew: four Box–Muller normals, rounded to float32.

Kept as the thing to be caught: only some float32 numbers can be such noise times a scale.
"""

import math
import os

import numpy as np


class FloatNoise:
    """Standard normal numbers from the system's entropy, in floating point."""

    exact = False

    def gaussian(self, total, noise_multiplier):
        shape, dtype = total.value.shape, total.value.dtype
        return self.standard_normal(shape, dtype) * (total.bound * noise_multiplier)

    def standard_normal(self, size, dtype=np.float64):
        shape = np.empty(size).shape
        count = 4 * math.prod(shape)
        bits = np.frombuffer(os.urandom(16 * count), np.uint64) >> np.uint64(11)
        u, v = bits.astype(np.float64).reshape(2, count) * 2.0**-53
        normals = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)
        return (normals.reshape(4, *shape).sum(axis=0) / 2).astype(dtype)
