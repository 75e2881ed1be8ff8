"""Clipped sums of networks' gradients, beside Opacus's fast gradient clipping.

python scripts/bench_networks.py [--records 256] [--repeats 7] [--kfc]

Both compute the same: the sum of all records' gradients, each clipped over all layers, on one
thread. They take turns, so that a busy machine slows both alike, and the CPU's time is measured.
Opacus makes two passes backwards (`GradSampleModuleFastGradientClipping` with ghost norms for its
Linear and Embedding layers); before anything is timed, the two sums are compared.
"""

import argparse
import copy
import platform
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedsofim.core.arrays import Array
from fedsofim.models import modules
from fedsofim.models.networks import DeepNetwork
from fedsofim.transforms.kfc import KFC

CLASSES, CLIP = 10, 1.0
IMAGES, WORDS, LENGTH = (3, 32, 32), 2000, 64
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MLP 3072-256-256-10": lambda: modules.mlp(IMAGES, CLASSES, 256, 2, "tanh"),
    "CNN 16-32-64": lambda: modules.cnn(IMAGES, CLASSES, 16, 3, "tanh"),
    "CNN 64-128-256": lambda: modules.cnn(IMAGES, CLASSES, 64, 3, "tanh"),
    "ResNet-20, group norm": lambda: modules.resnet(IMAGES, CLASSES, 16, 3, 8),
    "text 2000 x 64, 64 hidden": lambda: modules.TextClassifier(WORDS, CLASSES, 64, 64),
}


def records(name: str, count: int) -> tuple[Array, Array]:
    """Noise of the shape that the network takes, and labels."""
    rng = np.random.default_rng(0)
    shape = (count, LENGTH) if name.startswith("text") else (count, *IMAGES)
    x = rng.integers(0, WORDS, shape) if len(shape) == 2 else rng.standard_normal(shape)
    return x.astype(np.float32), rng.integers(0, CLASSES, count)


class Opacus:
    """Opacus's fast gradient clipping, for the same parameters."""

    def __init__(self, network: DeepNetwork, theta: Array) -> None:
        module = copy.deepcopy(network.module).train()
        module.load_state_dict(network.named(network.matrices(theta)))
        self.wrapped = GradSampleModuleFastGradientClipping(
            module, loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
        )

    def sum(self, x: Tensor, y: Tensor, microbatch: int) -> dict[str, Tensor]:
        """The clipped sum, by parameter."""
        for p in self.wrapped.parameters():
            p.grad = None
        for xs, ys in zip(x.split(microbatch), y.split(microbatch), strict=True):
            loss = cross_entropy(self.wrapped(xs), ys, reduction="none")
            kept = [(p, p.grad) for p in self.wrapped.parameters()]
            for p, _ in kept:
                p.grad = None
            loss.sum().backward(retain_graph=True)
            for p, grad in kept:
                p.grad = grad  # without what the pass for the norms has added
            coefficient = self.wrapped.get_clipping_coef()
            self.wrapped.disable_hooks()
            (loss * coefficient).sum().backward()
            self.wrapped.enable_hooks()
        return {k: p.grad.clone() for k, p in self.wrapped._module.named_parameters()}


def measured(name: str, count: int, repeats: int, microbatch: int) -> str:
    """Milliseconds of both, and their ratio."""
    network = DeepNetwork(NETWORKS[name](), CLASSES, microbatch)
    theta = network.init(np.random.default_rng(0))
    x, y = records(name, count)
    ours = network.records(x, y)
    opacus = Opacus(network, theta)
    theirs = opacus.sum(ours.x, ours.y, microbatch)
    sums = network.named(network.matrices(ours.gradient_sum(theta, CLIP).value))
    scale = max(float(g.abs().max()) for g in theirs.values())
    worst = max(float((sums[k] - g).abs().max()) for k, g in theirs.items()) / scale
    assert worst < 2e-3, f"{name}: the sums differ by {worst}"
    rounds: list[tuple[float, float]] = []
    for _ in range(repeats):
        began = time.process_time()
        ours.gradient_sum(theta, CLIP)
        between = time.process_time()
        opacus.sum(ours.x, ours.y, microbatch)
        rounds.append((between - began, time.process_time() - between))
    a, b = (1e3 * statistics.median(column) / count for column in zip(*rounds, strict=True))
    ratio = statistics.median(theirs / mine for mine, theirs in rounds)
    return f"| {name} | {network.size:,} | {a:.3f} | {b:.3f} | {ratio:.2f} |"


def kfc_cost(name: str, count: int, repeats: int, microbatch: int) -> str:
    """Milliseconds with KFC and without, their ratio, and seconds of a refresh."""
    network = DeepNetwork(NETWORKS[name](), CLASSES, microbatch)
    theta = network.init(np.random.default_rng(0))
    plain, probes = (network.records(*records(name, n)) for n in (count, 512))
    began = time.process_time()
    factors = KFC(damping=1e-3).factors(probes.curvature(theta))
    first = time.process_time() - began
    began = time.process_time()
    factors = KFC(damping=1e-3).factors(probes.curvature(theta))
    again = time.process_time() - began
    bent = plain.with_transform(factors)
    bent.gradient_sum(theta, CLIP)  # the norms of records, once a run
    rounds: list[tuple[float, float]] = []
    for _ in range(repeats):
        began = time.process_time()
        plain.gradient_sum(theta, CLIP)
        between = time.process_time()
        bent = bent.with_transform(factors)
        bent.gradient_sum(theta, CLIP)
        rounds.append((between - began, time.process_time() - between))
    a, b = (1e3 * statistics.median(column) / count for column in zip(*rounds, strict=True))
    ratio = statistics.median(slow / fast for fast, slow in rounds)
    return f"| {name} | {a:.3f} | {b:.3f} | {ratio:.2f} | {first:.1f} | {again:.1f} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--microbatch", type=int, default=64)
    parser.add_argument("--kfc", action="store_true", help="what DP-KFC adds, instead of Opacus")
    parser.add_argument("--only", default="", help="networks whose names contain this")
    a = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Full backward hook")
    print(f"{platform.machine()}, torch {torch.__version__}, one thread, CPU time")
    told = (
        "| network | without, ms a record | KFC | KFC / without | first refresh, s | later ones |"
        if a.kfc
        else "| network | parameters | ours, ms a record | Opacus, ms a record | Opacus / ours |"
    )
    print(told)
    print("| --- |" + " ---: |" * (told.count("|") - 2))
    each = kfc_cost if a.kfc else measured
    for name in (name for name in NETWORKS if a.only in name):
        print(each(name, a.records, a.repeats, a.microbatch), flush=True)


if __name__ == "__main__":
    main()
