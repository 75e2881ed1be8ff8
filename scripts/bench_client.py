"""What one client's clipped gradient sum costs beside its two bare matrix products.

    python scripts/bench_client.py [--repeats 100]

CPU time on one thread, the least of the repeats, taken in turns: it can be had on a busy machine,
where a round on several threads cannot. The products take chunks that stay in the cache.
"""

import argparse
import time

import numpy as np

from fedsofim.core.threads import one_thread_a_product
from fedsofim.models import head
from fedsofim.models.crowd import Many, gradient_sums
from fedsofim.models.records import Factors

# Records, features, classes, heads.
SHAPES = [(2500, 64, 10, 1), (2500, 512, 10, 1), (2500, 64, 10, 64)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    columns = ("records", "features", "classes", "heads", "sum us", "over products", "KFC's extra")
    print("".join(f"{name:>15}" for name in columns))
    for shape in SHAPES:
        plain, products, transformed = measured(*shape, repeats)
        cells = [*map(str, shape), f"{1e6 * plain:.1f}", f"{plain / products:.2f}"]
        print("".join(f"{c:>15}" for c in (*cells, f"{100 * (transformed / plain - 1):.0f} %")))


def measured(n: int, features: int, classes: int, heads: int, repeats: int) -> list[float]:
    """Seconds of a sum, of its products, and of a sum under a transform."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, features), dtype=np.float32), rng.integers(0, classes, n)
    data = head.examples(x, y, classes)
    turned = data.with_transform(
        Factors(*(np.eye(k, dtype=np.float32) for k in (classes, features + 1)))
    )
    thetas = rng.standard_normal((1, heads, classes, features + 1), dtype=np.float32) / 8
    flat, plain, under = thetas.reshape(-1, features + 1), Many([data]), Many([turned])

    def products() -> None:
        for batch in data.chunks(512):
            (flat @ batch.x) @ batch.x.T

    calls = (
        lambda: gradient_sums(thetas, plain, 1.0),
        products,
        lambda: gradient_sums(thetas, under, 1.0),
    )
    best = [float("inf")] * len(calls)
    with one_thread_a_product():
        for _ in range(repeats):
            for k, call in enumerate(calls):
                began = time.thread_time()
                call()
                best[k] = min(best[k], time.thread_time() - began)
    return best


if __name__ == "__main__":
    main()
