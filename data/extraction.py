"""Images to features, in batches, through a frozen backbone."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.rng import Purpose, stream
from fedsofim.data.backbones import Backbone
from fedsofim.data.download import EXTRACTING, Watch, silent
from fedsofim.data.images import Batch, ImageSet
from fedsofim.data.probes import pink_noise
from fedsofim.data.recipe import Preprocessing

PIXELS = 1 << 21  # of the images that go through at a time: 32 of 224 x 224
PROBES_AT_ONCE = 256  # part of what the probes are: each batch has a random stream of its own


def inputs(batch: Batch, how: Preprocessing) -> Tensor:
    """Inputs of a backbone `(B, 3, size, size)` from uint8 images."""
    if isinstance(batch, np.ndarray):
        x = _resize(batch, how.size)
    else:
        x = torch.cat([_resize(image[None], how.size) for image in batch])
    mean, std = torch.tensor(how.mean), torch.tensor(how.std)
    return (x - mean[:, None, None]) / std[:, None, None]


def _resize(images: Array, size: int) -> Tensor:
    x = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).float() / 255
    height, width = x.shape[2:]
    if (height, width) == (size, size):
        return x
    shrinks = max(height, width) > size
    return interpolate(x, (size, size), mode="bilinear", align_corners=False, antialias=shrinks)


def on_device(network: Backbone, wanted: str) -> tuple[Backbone, str]:
    """The backbone where it is to work, and where that is: a GPU for `auto`, if there is one."""
    there = {"cpu": True, "cuda": torch.cuda.is_available()}
    there["mps"] = torch.backends.mps.is_available()
    chosen = wanted
    if wanted == "auto":
        chosen = next(name for name in ("cuda", "mps", "cpu") if there[name])
    require(there[chosen], f"features.device={wanted}: this machine, or this torch, has none")
    return network.to(chosen), chosen


@torch.inference_mode()
def extract(
    network: Backbone,
    images: ImageSet,
    *,
    batch: int = 256,
    watch: Watch = silent,
) -> dict[str, Array]:
    """The features `(N, F)` float32, labels and owners of every split, by array name."""
    how = network.preprocessing
    batch = min(batch, max(1, PIXELS // how.size**2))
    total = sum(len(split.labels) for split in images.splits.values())
    done = 0
    watch(EXTRACTING, 0, total)
    out: dict[str, Array] = {}
    for name, split in images.splits.items():
        features = np.empty((len(split.labels), network.width), np.float32)
        start = 0
        for chunk in split.batches(batch):
            features[start : start + len(chunk)] = embed(network, inputs(chunk, how))
            start += len(chunk)
            watch(EXTRACTING, done + start, total)
        done += start
        require(bool(np.isfinite(features).all()), f"{name}: the backbone gives infinite features")
        out[f"{name}_x"], out[f"{name}_y"] = features, smallest(split.labels)
        if split.client_id is not None:
            out[f"{name}_client_id"] = split.client_id
    return out


@torch.inference_mode()
def probe_features(network: Backbone, count: int, watch: Watch = silent) -> Array:
    """The features of `count` pink-noise images `(count, F)`; they depend on no data."""
    out = np.empty((count, network.width), np.float32)
    for start in range(0, count, PROBES_AT_ONCE):
        x = pink_noise(stream(0, Purpose.PROBE, start), min(PROBES_AT_ONCE, count - start))
        out[start : start + PROBES_AT_ONCE] = embed(network, torch.from_numpy(x))
        watch("passing probes", start + len(x), count)
    return out


def embed(network: Backbone, x: Tensor) -> Array:
    """Features of normalised images, `(B, F)`; in halves where memory does not suffice."""
    place = next(iter(network.parameters()), x).device
    try:
        features = network.embed(x.to(place).contiguous(memory_format=torch.channels_last))
    except torch.OutOfMemoryError:
        if len(x) == 1:
            raise
        return np.concatenate([embed(network, part) for part in x.chunk(2)])
    return np.asarray(features.float().cpu().numpy())


def smallest(labels: Array) -> Array:
    """The same whole numbers in the least unsigned type that holds them."""
    return labels.astype(np.min_scalar_type(int(labels.max())))
