"""Images to features, in batches, through a frozen backbone."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.rng import Purpose, stream
from fedsofim.data.arithmetic import Workplace
from fedsofim.data.backbones import Backbone
from fedsofim.data.download import EXTRACTING, Watch, silent
from fedsofim.data.images import Batch, ImageSet
from fedsofim.data.probes import pink_noise
from fedsofim.data.recipe import Preprocessing

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


@torch.inference_mode()
def extract(
    place: Workplace,
    images: ImageSet,
    *,
    batch: int | None = None,
    watch: Watch = silent,
) -> dict[str, Array]:
    """The features `(N, F)` float32, labels and owners of every split, by array name."""
    network = place.network
    how, batch = network.preprocessing, batch or place.batch()
    what = f"{EXTRACTING} on {place.device}"
    total = sum(len(split.labels) for split in images.splits.values())
    done = 0
    watch(what, 0, total)
    out: dict[str, Array] = {}
    for name, split in images.splits.items():
        features = np.empty((len(split.labels), network.width), np.float32)
        start = 0
        for chunk in split.batches(batch):
            features[start : start + len(chunk)] = place.embed(inputs(chunk, how))
            start += len(chunk)
            watch(what, done + start, total)
        done += start
        require(bool(np.isfinite(features).all()), f"{name}: the backbone gives infinite features")
        out[f"{name}_x"], out[f"{name}_y"] = features, smallest(split.labels)
        if split.client_id is not None:
            out[f"{name}_client_id"] = split.client_id
    return out


@torch.inference_mode()
def probe_features(place: Workplace, count: int, watch: Watch = silent) -> Array:
    """The features of `count` pink-noise images `(count, F)`; they depend on no data."""
    out = np.empty((count, place.network.width), np.float32)
    for start in range(0, count, PROBES_AT_ONCE):
        x = pink_noise(stream(0, Purpose.PROBE, start), min(PROBES_AT_ONCE, count - start))
        out[start : start + PROBES_AT_ONCE] = place.embed(torch.from_numpy(x))
        watch("passing probes", start + len(x), count)
    return out


def embed(network: Backbone, x: Tensor) -> Array:
    """Features of normalised images, `(B, F)`, in single precision on the CPU."""
    return Workplace(network).embed(x)


def smallest(labels: Array) -> Array:
    """The same whole numbers in the least unsigned type that holds them."""
    return labels.astype(np.min_scalar_type(int(labels.max())))
