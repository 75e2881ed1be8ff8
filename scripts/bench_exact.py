"""What an exact release costs, in CPU time: its sum and its noise, beside a simulation's.

python scripts/bench_exact.py
"""

import time
from collections.abc import Callable

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.models.head import Examples, examples
from fedsofim.models.records import Factors
from fedsofim.privacy.exact import ExactNoise
from fedsofim.privacy.mechanism import NoiseSource, SeededNoise, add_gaussian

CLASSES, CLIP, Z = 10, 10.0, 8.4


def milliseconds(work: Callable[..., object], *given: object) -> float:
    """The median CPU time of at least three calls and half a second."""
    work(*given)
    times: list[float] = []
    while len(times) < 3 or sum(times) < 0.5:
        begin = time.process_time()
        work(*given)
        times.append(time.process_time() - begin)
    return 1e3 * float(np.median(times))


def release(data: Examples, theta: Array, noise: NoiseSource) -> Array:
    """What a client sends."""
    return add_gaussian(data.gradient_sum(theta, CLIP, noise.exact), Z, noise) / data.size


def main() -> None:
    """Print a table: a release of so many numbers from so many records."""
    rng = np.random.default_rng(0)
    print("| numbers | records | transform | seeded | exact | of it noise |")
    print("|---:|---:|---|---:|---:|---:|")
    for features in (64, 512):
        theta = (0.1 * rng.standard_normal((CLASSES, features + 1))).astype(np.float32)
        factors = Factors(np.eye(CLASSES, dtype=np.float32), np.eye(features + 1, dtype=np.float32))
        for n in (2500, 50_000, 1_000_000):
            x = np.maximum(rng.standard_normal((n, features), np.float32), 0)
            plain = examples(x, rng.integers(0, CLASSES, n), CLASSES)
            del x
            for name, data in (("none", plain), ("kfc", plain.with_transform(factors))):
                fast = milliseconds(release, data, theta, SeededNoise(rng))
                exact = milliseconds(release, data, theta, ExactNoise())
                total = data.gradient_sum(theta, CLIP, exact=True)
                noise = milliseconds(ExactNoise().gaussian, total, Z)
                figures = " | ".join(f"{ms:,.1f} ms" for ms in (fast, exact, noise))
                print(f"| {theta.size:,} | {n:,} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
