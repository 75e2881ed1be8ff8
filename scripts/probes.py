"""Probes for `transform=kfc` on features: noise or public images through the project's backbone.

    python scripts/probes.py white probes.npz
    python scripts/probes.py pink probes.npz --alpha 0.5
    python scripts/probes.py public probes.npz --images cifar100.npz
    fedsofim run transform=kfc transform.probes=probes.npz

The file holds `probe_x`, the features of 4,096 images. Public images are the first of the test set
of a file in MedMNIST's layout; noise depends on no data at all.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from fedsofim.core.arrays import Array
from fedsofim.core.rng import Purpose, stream
from fedsofim.data import npz
from fedsofim.data.backbones import load_backbone
from fedsofim.data.extraction import embed
from fedsofim.data.probes import pink_noise
from fedsofim.data.recipe import OWN_WEIGHTS, Preprocessing

COUNT, AT_ONCE = 4096, 256


def noise(alpha: float) -> Array:
    """Images of noise whose amplitude falls as 1/f^alpha, normalised as the backbone takes them."""
    return pink_noise(stream(0, Purpose.PROBE), COUNT, alpha)


def public(file: Path) -> Array:
    """Images of a test set, normalised as the backbone takes them."""
    images = next(npz.rows(file, "test_images", COUNT)).astype(np.float32) / 255
    recipe = Preprocessing()
    x = (images - np.float32(recipe.mean)) / np.float32(recipe.std)
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2).astype(np.float32))


def main() -> None:
    """Write the features of the images that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["white", "pink", "public"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--alpha", type=float, default=1.0, help="of pink noise's amplitude")
    parser.add_argument("--images", type=Path, help="of 32 by 32 pixels, for public ones")
    given = parser.parse_args()
    if given.kind == "public" and given.images is None:
        parser.error("public: name a file of images with --images")
    decay = given.alpha if given.kind == "pink" else 0.0
    x = public(given.images) if given.kind == "public" else noise(decay)
    network = load_backbone("resnet20", OWN_WEIGHTS["resnet20"])
    with torch.inference_mode():
        starts = range(0, len(x), AT_ONCE)
        parts = [embed(network, torch.from_numpy(x[i : i + AT_ONCE])) for i in starts]
    np.savez(given.out, probe_x=np.concatenate(parts))
    print(f"{len(x)} probes in {given.out}")


if __name__ == "__main__":
    main()
