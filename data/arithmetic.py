"""Where and how a backbone works: the device, half precision where it is safe, images at a time."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.rng import Purpose, stream
from fedsofim.data.backbones import Backbone
from fedsofim.data.recipe import FeaturesConfig

PIXELS = 1 << 21  # of the images that go through a CPU at a time: 32 of 224 x 224
MOST = 2048  # images at a time, on any device
TRIED = 8  # images of noise that half precision is tried on
MOVED = 0.02  # how far it may move the features of one, relative to their norm
EARNED = 1.1  # how much faster twice as many images must be for more to be tried
HALVES = {"cuda": torch.float16, "mps": torch.float16, "cpu": torch.bfloat16}


class Workplace(NamedTuple):
    """A backbone where it works, and how.

    Attributes:
        network: on its device.
        device: which.
        mixed: whether it works in half precision where torch deems that safe.
    """

    network: Backbone
    device: str = "cpu"
    mixed: bool = False

    @property
    def arithmetic(self) -> str:
        """In words: `mixed` or `single`."""
        return "mixed" if self.mixed else "single"

    def embed(self, x: Tensor) -> Array:
        """Features of normalised images, `(B, F)`; in parts where memory does not suffice.

        A record that half precision gives no finite features is done again, alone, in single: what
        it is must not move the features of others.
        """
        features = self._pass(x)
        bad = ~np.isfinite(features).all(axis=1)
        if self.mixed and bad.any():
            single = self._replace(mixed=False)
            for i in np.flatnonzero(bad):
                features[i] = single.embed(x[i : i + 1])[0]
        return features

    def _pass(self, x: Tensor) -> Array:
        placed = x.to(self.device).contiguous(memory_format=torch.channels_last)
        try:
            with torch.autocast(self.device, HALVES[self.device], enabled=self.mixed):
                features = self.network.embed(placed)
        except torch.OutOfMemoryError:
            if len(x) == 1:
                raise
            return np.concatenate([self._pass(part) for part in x.chunk(2)])
        return np.asarray(features.float().cpu().numpy())

    def batch(self) -> int:
        """Images at a time: as many as pay on a GPU, which is tried; a moderate number on a CPU."""
        start = max(1, min(256, PIXELS // self.network.preprocessing.size**2))
        return start if self.device == "cpu" else as_many_as_pay(self._seconds, start)

    def _seconds(self, count: int) -> float:
        """How long so many blank images take; memory may not suffice."""
        size = self.network.preprocessing.size
        x = torch.zeros(count, 3, size, size, device=self.device)
        took = []
        with torch.inference_mode():
            for _ in range(2):  # the first pass sets things up
                began = time.perf_counter()
                with torch.autocast(self.device, HALVES[self.device], enabled=self.mixed):
                    self.network.embed(x).float().cpu()
                took.append(time.perf_counter() - began)
        return took[-1]


def workplace(network: Backbone, how: FeaturesConfig) -> Workplace:
    """Where and how a backbone is to work; no record of anybody's is looked at for it."""
    device = device_of(how.device)
    single = Workplace(network.to(device), device)
    if how.arithmetic == "single" or (how.arithmetic == "auto" and device != "cuda"):
        return single
    moved = _moved(single)
    require(
        how.arithmetic == "auto" or moved <= MOVED,
        f"features.arithmetic=mixed: would move this backbone's features of noise by {moved:.1%}, "
        f"more than {MOVED:.0%}; use single",
    )
    return single._replace(mixed=moved <= MOVED)


def device_of(wanted: str) -> str:
    """The device to work on: for `auto` a GPU, if there is one."""
    there = {"cpu": True, "cuda": torch.cuda.is_available()}
    there["mps"] = torch.backends.mps.is_available()
    chosen = wanted
    if wanted == "auto":
        chosen = next(name for name in ("cuda", "mps", "cpu") if there[name])
    require(there[chosen], f"features.device={wanted}: this machine, or this torch, has none")
    return chosen


def as_many_as_pay(seconds: Callable[[int], float], start: int) -> int:
    """How many images at a time are fastest, doubling from `start` for as long as that pays.

    Args:
        seconds: how long so many images take; raises `torch.OutOfMemoryError` if there is no room.
        start: what to begin with.
    """

    def rate(count: int) -> float:
        try:
            return count / seconds(count)
        except torch.OutOfMemoryError:
            return 0.0

    best, fastest = start, rate(start)
    while best > 1 and not fastest:
        best //= 2
        fastest = rate(best)
    while best < MOST and (twice := rate(2 * best)) > EARNED * fastest:
        best, fastest = 2 * best, twice
    return best


def _moved(single: Workplace) -> float:
    """How far half precision moves features of noise, at most, relative to their norm."""
    size = single.network.preprocessing.size
    noise = stream(0, Purpose.PROBE, size).standard_normal((TRIED, 3, size, size), np.float32)
    with torch.inference_mode():
        x = torch.from_numpy(noise)
        exact, halved = single._pass(x), single._replace(mixed=True)._pass(x)
    norms = np.linalg.norm(exact, axis=1)
    moved = np.linalg.norm(halved - exact, axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)
    return float(np.where(np.isfinite(moved), moved, np.inf).max())
