"""From a config to its file of features: embedded, the user's own, cached, or made from images.

What is made is kept under a name that is a hash of all that decided it - the content of the
images, the weights, the preprocessing - so a run extracts once and never finds a stale file.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np

from fedsofim import __version__
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import sha256, whole, write_whole
from fedsofim.data import npz
from fedsofim.data.catalog import Source, locate
from fedsofim.data.classes import NAMES
from fedsofim.data.datasets import ARRAYS, DatasetConfig
from fedsofim.data.download import Watch, silent
from fedsofim.data.hugging_face import HuggingFace
from fedsofim.data.recipe import BackboneConfig, FeaturesConfig, Preprocessing
from fedsofim.data.vision import optional

POOLED, AS_THEY_ARE = "global average pool after the last ReLU", "as they are"
NO_PROBES = "features.probes: are made for backbone=resnet20 and vgg16 only"


class Inputs(NamedTuple):
    """All that decides a file of features: the images, the weights, and the recipe."""

    source: Source
    weights: Path | None
    recipe: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """How features are made: from which images, by which backbone, and how they are kept."""

    dataset: DatasetConfig
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)

    def file(self, watch: Watch = silent, *, scored: bool = True) -> Path:
        """The file of features, extracted now if there is none yet.

        Args:
            watch: shown the progress.
            scored: whether a run is to be scored on it, which takes test images.
        """
        if ready := self.ready():
            return ready
        inputs = self.find(watch)
        cached = self._cached(inputs)
        if not cached.is_file():
            require_writable(cached, "features.cache")
            self._extract(inputs, cached, watch, scored=scored)
        return cached

    def write(self, out: Path, watch: Watch = silent) -> None:
        """Write the features of images to a new file; they may come from the cache."""
        require_new(out)
        ready = self.ready()
        require(
            ready is None,
            f"dataset={self.dataset.name}: has features already, in {ready}; "
            "name its images with dataset.root",
        )
        inputs = self.find(watch)
        cached = self._cached(inputs)
        if cached.is_file():
            with whole(out) as draft:
                shutil.copyfile(cached, draft)
        else:
            require_writable(out, "out")
            self._extract(inputs, out, watch, scored=False)

    def ready(self) -> Path | None:
        """The file of features that the config names or the project embeds."""
        if isinstance(self.dataset, HuggingFace):
            return None
        if self.dataset.path is not None:
            return None if self.dataset.holds_images() else self.dataset.file
        own = self.backbone.weights == "own"
        return self.dataset.embedded_by(self.backbone.name) if own else None

    def find(self, watch: Watch = silent) -> Inputs:
        """The images and the weights, and what they are known by."""
        require(self.dataset.name != "arrays", ARRAYS)
        store = self.features.store
        if isinstance(self.dataset, HuggingFace) and not self.dataset.holds_images():
            source = locate(self.dataset, store, watch)
            return Inputs(source, None, {"dataset": self._about(source), "features": AS_THEY_ARE})
        weights = self.backbone.file(store, watch)
        how = preprocessing_of(self.backbone)
        source = locate(self.dataset, store, watch)
        recipe = {
            "dataset": self._about(source),
            "backbone": {
                "name": self.backbone.name,
                "sha256": sha256(weights) if weights else "random",
            },
            "preprocessing": how.describe(),
            "features": "its own" if self.backbone.named else POOLED,
            "precision": self.features.precision,
            "probes": self.features.probes or 0,
        }
        if self.features.arithmetic != "auto":
            recipe["arithmetic"] = self.features.arithmetic
        return Inputs(source, weights, recipe)

    def _about(self, source: Source) -> dict[str, Any]:
        """What the images, or the records, are known by."""
        named = {"labels": "by name"} if self.dataset.name == "folder" else {}
        return {
            "name": self.dataset.name,
            "sha256": fingerprint(source.files, self.features.store / "fingerprints"),
            "read": self.dataset.read() | named,
        }

    def _cached(self, inputs: Inputs) -> Path:
        model = "own" if inputs.source.features else re.sub(r"\W+", "-", self.backbone.name)
        name = f"{self.dataset.name}-{model}-{npz.key(inputs.recipe)}.npz"
        return self.features.store / "features" / name

    def _extract(self, inputs: Inputs, out: Path, watch: Watch, *, scored: bool) -> None:
        if inputs.source.features is not None:
            records = inputs.source.features()
            self._require_test("test_x" in records, scored, "records")
            told = {**inputs.recipe, "made_by": f"fedsofim {__version__}"}
            return save(out, npz.seal(records, told))
        optional("torch")
        from fedsofim.data.arithmetic import workplace
        from fedsofim.data.backbones import backbone
        from fedsofim.data.extraction import extract, probe_features

        source, weights, _ = inputs
        options = self.features
        place = workplace(backbone(self.backbone.name, weights), options)
        images = source.open()
        self._require_test("test" in images.splits, scored, "images")
        arrays = extract(place, images, batch=options.batch, watch=watch)
        require(not (options.probes and self.backbone.named), NO_PROBES)
        if options.probes:
            arrays["probe_x"] = probe_features(place, options.probes, watch)
        arrays = quantise(arrays) if options.precision == "uint8" else half(arrays)
        if images.classes.names:
            arrays[NAMES] = np.array(images.classes.names)
        told = provenance(inputs, images.classes.count)
        save(out, npz.seal(arrays, told | {"device": place.device, "arithmetic": place.arithmetic}))

    def _require_test(self, found: bool, scored: bool, what: str) -> None:
        where = self.dataset.path or self.dataset.root or f"dataset={self.dataset.name}"
        require(
            found or not scored or bool(self.dataset.holdout),
            f"{where}: has no test {what}; dataset.holdout=0.2 scores the run on training {what} "
            "that it holds out",
        )


def preprocessing_of(backbone: BackboneConfig) -> Preprocessing:
    """What a backbone takes; one of somebody else's is made to say so."""
    if not backbone.named:
        return Preprocessing()
    optional("torch")
    from fedsofim.data.named_backbones import named_backbone

    return named_backbone(backbone.name, None).preprocessing


def provenance(inputs: Inputs, classes: int) -> dict[str, Any]:
    """What a file of features says of itself."""
    source, weights, recipe = inputs
    dataset = {"classes": classes, "licence": source.licence()}
    return recipe | {
        "dataset": recipe["dataset"] | dataset,
        "backbone": recipe["backbone"] | {"weights": weights.name if weights else "random"},
        "made_by": f"fedsofim {__version__}",
    }


def require_new(out: Path) -> None:
    """Refuse a file that is there already, or is called otherwise."""
    require(out.suffix == ".npz", f"out={out}: must end in .npz")
    require(not out.exists(), f"out={out}: exists already; name another")


def require_writable(file: Path, key: str) -> None:
    """Refuse a place that cannot be written to before minutes of work are lost for it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"{key}: {file.parent} cannot be written ({error.strerror}); name another place with "
            f"{key}="
        ) from None


def half(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Features in half precision, each rounded by itself."""
    with np.errstate(over="ignore"):
        out = {k: v.astype(np.float16) if k.endswith("_x") else v for k, v in arrays.items()}
    for name, value in out.items():
        fits = not name.endswith("_x") or bool(np.isfinite(value).all())
        require(fits, f"{name}: features beyond half precision's 65504")
    return out


def quantise(arrays: Mapping[str, Array], steps: int = 255) -> dict[str, Array]:
    """Features in at most 8 bits, value = `lo + scale * q` by column; for public data only.

    >>> coded = quantise({"train_x": np.array([[0.0], [2.0], [51.0]], np.float32)})
    >>> coded["train_x"].ravel().tolist(), float(coded["lo"][0] + coded["scale"][0] * 255)
    ([0, 10, 255], 51.0)
    """
    tables = [v for k, v in arrays.items() if k.endswith("_x")]
    lo = np.min([t.min(axis=0) for t in tables], axis=0).astype(np.float32)
    span = np.max([t.max(axis=0) for t in tables], axis=0) - lo
    scale = np.where(span > 0, span / steps, 1).astype(np.float32)
    coded = {k: code(v, lo, scale) if k.endswith("_x") else v for k, v in arrays.items()}
    return {**coded, "lo": lo, "scale": scale}


def code(features: Array, lo: Array, scale: Array) -> Array:
    """The nearest 8-bit codes of features."""
    return np.rint((features - lo) / scale).clip(0, 255).astype(np.uint8)


def save(file: Path, arrays: Mapping[str, Array]) -> None:
    """Write a `.npz` that appears only when it is complete; 8-bit codes are worth compressing."""
    coded = any(v.dtype == np.uint8 for k, v in arrays.items() if k.endswith("_x"))
    write: Callable[..., None] = np.savez_compressed if coded else np.savez
    with whole(file) as draft, open(draft, "wb") as stream:
        write(stream, **arrays)


def fingerprint(files: Sequence[Path], memory: Path) -> str:
    """The SHA-256 of all files' names and content.

    It is remembered in the folder `memory` for as long as names, sizes and times stay the same, so
    that gigabytes of images are read once, and not before every run.
    """
    root = Path(os.path.commonpath([file.resolve().parent for file in files]))
    stats = [(str(f.resolve()), (s := f.stat()).st_size, s.st_mtime_ns) for f in files]
    note = memory / hashlib.sha256(json.dumps(stats).encode()).hexdigest()
    with suppress(OSError):
        return note.read_text()
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.resolve().relative_to(root)} {sha256(file)}\n".encode())
    with suppress(OSError):
        write_whole(note, total.hexdigest().encode())
    return total.hexdigest()
