"""Image sets to test with: generated ones, and the samples that lie beside the project."""

import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from PIL import Image

CLASSES = 4
TRAIN, TEST = 40, 16

torch.set_num_threads(1)  # batches are small: threads would wait for each other


def images(
    rng: np.random.Generator, count: int, size: int = 28, channels: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Flat colours with noise, told apart by their labels; the colour of class 0 is the darkest."""
    labels = np.arange(count) % CLASSES
    shape = (count, size, size, channels)
    pixels = 50 * labels[:, None, None, None] + rng.integers(0, 60, shape)
    return pixels.astype(np.uint8), labels[:, None].astype(np.uint8)


def write_npz(
    file: Path, *, train: int = TRAIN, size: int = 28, grey: bool = False, **extra
) -> Path:
    """A `.npz` in MedMNIST's layout; `extra` arrays replace or join its own."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", train), ("val", 4), ("test", TEST)):
        x, y = images(rng, count, size, 1 if grey else 3)
        arrays |= {f"{split}_images": x[..., 0] if grey else x, f"{split}_labels": y}
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **{k: v for k, v in {**arrays, **extra}.items() if v is not None})
    return file


def write_folder(root: Path, *, per_class: int = 6, mode: str = "RGB") -> Path:
    """A folder by class, of images that differ in size and format."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, level in (("benign", 40), ("malignant", 190)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(per_class):
                size = (30 + i, 40, 3)
                pixels = (level + rng.integers(0, 40, size)).astype(np.uint8)
                suffix = ("png", "bmp", "webp")[i % 3]
                picture = Image.fromarray(pixels).convert(mode)
                picture.save(folder / f"{i}.{suffix}", lossless=True)
    return root


def shared(name: str) -> Path:
    """A file of the real data beside the project, or a skip that says what is absent."""
    named = os.environ.get("FEDSOFIM_SHARED")
    roots = [Path(named)] if named else [p / "shared" for p in Path(__file__).resolve().parents]
    for root in roots:
        if (root / "data" / name).exists():
            return root / "data" / name
    pytest.skip(f"no shared/data/{name} beside the project; FEDSOFIM_SHARED names its folder")
