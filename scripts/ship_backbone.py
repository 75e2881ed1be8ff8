r"""Make what the project ships of a backbone: its weights, public statistics, and features.

    python scripts/ship_backbone.py vgg16 --weights vgg16.pt --images DIR --work DIR

DIR holds `cifar10.npz`, `cifar100.npz` and `pathmnist.npz` (scripts/pack_images.py makes the first
two). It writes

    data/weights/vgg16-cifar100.pt.xz          weights in half precision, rounded, compressed
    data/weights/vgg16-cifar100-public.npz     mean and covariance of CIFAR-100's test images
    data/embedded/{cifar10,pathmnist}-vgg16.npz

Features come from the weights as they are shipped, in single precision. They are kept in the work
folder, some thousand images at a time, so the same command continues what was interrupted.
"""

import argparse
import hashlib
import io
import lzma
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from public_statistics import write_statistics

from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import whole, write_whole
from fedsofim.data import npz
from fedsofim.data.arithmetic import Workplace
from fedsofim.data.backbones import BACKBONES, Backbone, load_backbone
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.extraction import embed, inputs, probe_features, smallest
from fedsofim.data.features import Extraction, provenance, quantise
from fedsofim.data.images import Split
from fedsofim.data.probe_cache import COUNT as PROBES
from fedsofim.data.recipe import BackboneConfig, FeaturesConfig, Preprocessing

MANTISSA = 4  # bits of a weight's mantissa that are kept
# Steps of a column of features, from its least to its largest value: as few as a linear head bears.
STEPS = (13, 15, 31, 63, 127, 255)
LOSS = 0.015  # of a linear head's accuracy, that fewer steps may cost
LARGEST = 45_000_000  # bytes of all files together
SHARD, BATCH = 4096, 256
# LZMA, told that the data come in pairs of bytes; there is nothing to gain from a longer search.
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 1, "lc": 0, "lp": 1, "pb": 1}]


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Half precision with `MANTISSA` bits after the leading one, to nearest."""
    mantissa, exponent = np.frexp(x.float().numpy())
    steps = 2.0 ** (MANTISSA + 1)
    kept = np.ldexp(np.rint(mantissa * steps) / steps, exponent)
    return torch.from_numpy(kept.astype(np.float16))


def pack_weights(file: Path, out: Path) -> None:
    """Write a state dict in half precision, its large tensors rounded further."""
    saved = torch.load(file, map_location="cpu", weights_only=True)
    state = saved.get("network", saved)  # a checkpoint holds it under this name
    state = {k: rounded(v) if v.ndim > 1 else v for k, v in state.items()}
    buffer = io.BytesIO()
    torch.save({k: v.contiguous() for k, v in state.items()}, buffer)
    write_whole(out, lzma.compress(buffer.getvalue(), lzma.FORMAT_XZ, filters=XZ))


def shards(network: Backbone, split: Split, folder: Path, told: str) -> Iterator[np.ndarray]:
    """The features of a split, some thousand images at a time, from the folder where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    held: list[np.ndarray] = []
    begun, total = time.perf_counter(), len(split.labels)
    for k, batch in enumerate(split.batches(SHARD)):
        file = folder / f"{k:03}.npy"
        if not file.is_file():
            with torch.inference_mode():
                held = [
                    embed(network, inputs(batch[i : i + BATCH], Preprocessing()))
                    for i in range(0, len(batch), BATCH)
                ]
            with whole(file) as draft, open(draft, "wb") as stream:
                np.save(stream, np.concatenate(held))
            done = min((k + 1) * SHARD, total)
            print(f"{told}: {done:,} of {total:,}, {time.perf_counter() - begun:.0f} s", flush=True)
        yield np.load(file)


def accuracy(network: Backbone, features: np.ndarray, labels: np.ndarray) -> float:
    """Of the backbone's own classifier."""
    classifier = network.fc if hasattr(network, "fc") else network.classifier
    with torch.inference_mode():
        return float((classifier(torch.from_numpy(features)).argmax(1).numpy() == labels).mean())


def save_small(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a `.npz` as small as zip files get: LZMA, columns of features one after the other."""
    with whole(file) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            value = np.asfortranarray(array) if name.endswith("_x") else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, value, allow_pickle=False)


def _decoded(coded: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a run sees of coded features."""
    lo, scale = coded["lo"], coded["scale"]
    return {k: lo + scale * v if k.endswith("_x") else v for k, v in coded.items()}


def head_accuracy(train_x: np.ndarray, train_y: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Of a linear head by least squares: what a coding must not cost."""
    scale = train_x.std(axis=0) + 1e-6
    design = np.column_stack([train_x / scale, np.ones(len(train_x), train_x.dtype)])
    gram = (design.T @ design).astype(np.float64) + np.eye(design.shape[1])
    theta = np.linalg.solve(
        gram, design.T @ np.eye(int(train_y.max()) + 1, dtype=design.dtype)[train_y]
    )
    scores = np.column_stack([x / scale, np.ones(len(x), x.dtype)]) @ theta
    return float((scores.argmax(axis=1) == y).mean())


def coarsest(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The coding with the fewest steps that a linear head bears."""
    names = ("train_x", "train_y", "test_x", "test_y")
    exact = head_accuracy(*(arrays[k] for k in names))
    print(f"features as they are: a linear head finds {100 * exact:.2f} %", flush=True)
    for steps in STEPS:
        coded = quantise(arrays, steps)
        score = head_accuracy(*(_decoded(coded)[k] for k in names))
        print(f"in {steps} steps: {100 * score:.2f} %", flush=True)
        if score >= exact - LOSS:
            break
    return coded


class Maker:
    """Makes the files of one backbone."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.name, self.out = arguments.backbone, arguments.out
        self.images = arguments.images
        self.weights = self.out / "weights" / f"{self.name}-cifar100.pt.xz"
        if arguments.weights:
            pack_weights(arguments.weights, self.weights)
        self.network = load_backbone(self.name, self.weights)
        key = hashlib.sha256(self.weights.read_bytes()).hexdigest()[:12]
        self.work = arguments.work / f"{self.name}-{key}"
        print(f"{self.weights}: {self.weights.stat().st_size / 1e6:.2f} MB", flush=True)

    def extraction(self, dataset: str) -> Extraction:
        """How a data set's features are made."""
        return Extraction(
            dataset=DatasetConfig(name=dataset, root=str(self.images)),
            backbone=BackboneConfig(name=self.name, weights=str(self.weights)),
            features=FeaturesConfig(precision="uint8", probes=PROBES, cache=str(self.work)),
        )

    def public(self) -> None:
        """Statistics of CIFAR-100's test images, and the accuracy of the weights as shipped."""
        split = self.extraction("cifar100").find().source.open().splits["test"]
        x = np.concatenate([*shards(self.network, split, self.work / "cifar100-test", "cifar100")])
        print(f"CIFAR-100: {100 * accuracy(self.network, x, split.labels):.2f} % of the test set")
        out = self.out / "weights" / f"{self.name}-cifar100-public.npz"
        write_statistics(x, out, np.float16)  # of wide features it would be large

    def embed(self, dataset: str) -> None:
        """The features of a data set and of probes, coded in few bits, sealed."""
        made = self.extraction(dataset)
        found = made.find()
        images, arrays = found.source.open(), {}
        for name in ("train", "test"):  # no run reads "val"
            split = images.splits[name]
            told = f"{dataset} {name}"
            parts = shards(self.network, split, self.work / f"{dataset}-{name}", told)
            arrays[f"{name}_x"] = np.concatenate([*parts])
            arrays[f"{name}_y"] = smallest(split.labels)
        arrays["probe_x"] = self.probes()
        coded = coarsest(arrays)
        file = self.out / "embedded" / f"{dataset}-{self.name}.npz"
        save_small(file, npz.seal(coded, provenance(found, images.classes.count)))
        zeros = float((arrays["train_x"] == 0).mean())
        print(f"{file}: {file.stat().st_size / 1e6:.2f} MB, {zeros:.0%} zeros", flush=True)

    def probes(self) -> np.ndarray:
        """The features of pink-noise images, from the folder where they are."""
        file = self.work / "probes.npy"
        if not file.is_file():
            with whole(file) as draft, open(draft, "wb") as stream:
                np.save(stream, probe_features(Workplace(self.network), PROBES))
        return np.load(file)


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backbone", choices=sorted(BACKBONES))
    parser.add_argument("--weights", type=Path, help="as they were trained; else those shipped")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="a folder for what is half done")
    parser.add_argument("--out", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    try:
        maker = Maker(arguments)
        maker.public()
        for dataset in ("cifar10", "pathmnist"):
            maker.embed(dataset)
        files = [f for f in maker.out.rglob(f"*{maker.name}*") if f.is_file()]
        together = sum(f.stat().st_size for f in files)
        print(f"together: {together / 1e6:.2f} MB")
        require(together <= LARGEST, f"they are larger than {LARGEST / 1e6:.0f} MB; raise LOSS")
    except ConfigError as error:
        print(f"ship_backbone: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
