"""What decides features: the backbone, its weights, and what is done to pixels before and after."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fedsofim.core.errors import require
from fedsofim.core.shipped import shipped
from fedsofim.data.download import Watch, download, silent

OWN_WEIGHTS = {
    "resnet20": shipped("data/weights/resnet20-cifar100.pt"),
    "vgg16": shipped("data/weights/vgg16-cifar100.pt.xz"),
}
# chenyaofo/pytorch-cifar-models, which the paper's authors used; a file's name ends in its hash.
HUB = "https://github.com/chenyaofo/pytorch-cifar-models/releases/download"
HUB_WEIGHTS = {
    "resnet20": f"{HUB}/resnet/cifar100_resnet20-23dac2f1.pt",
    "vgg16": f"{HUB}/vgg/cifar100_vgg16_bn-7d8c4031.pt",
}


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """What is done to pixels: scaled to 0 … 1, resized, normalised by channel.

    Enlarging is bilinear; shrinking also averages over what a new pixel covers.

    Attributes:
        size: width and height that the backbone takes.
        mean: subtracted from each channel; CIFAR-100's.
        std: each channel is divided by it; CIFAR-100's.
    """

    size: int = 32
    mean: tuple[float, float, float] = (0.5071, 0.4865, 0.4409)
    std: tuple[float, float, float] = (0.2673, 0.2564, 0.2762)

    def describe(self) -> dict[str, object]:
        """All of it, as plain values."""
        return {"pixels": "/255", "resize": "bilinear, antialiased when shrinking", **asdict(self)}


# What nearly all models that were trained on ImageNet take.
IMAGENET = Preprocessing(size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Which frozen network turns images into features.

    Attributes:
        name: `resnet20` (64 features), `vgg16` (512), `torchvision:NAME`, `timm:NAME`, or a
            function of yours that makes a torch module, `package.module:function`.
        weights: `own`, the project's; `hub`, the paper's authors'; `random`; or a file.
        download: whether the hub's weights may be fetched.
    """

    name: str = "resnet20"
    weights: str = "own"
    download: bool = False

    def __post_init__(self) -> None:
        known = (*OWN_WEIGHTS,)
        require(
            self.name in known or ":" in self.name,
            f"name={self.name}: choose one of {', '.join(known)}, torchvision:NAME, timm:NAME or "
            "package.module:function",
        )
        require(
            ":" not in self.name or self.weights not in ("own", "hub"),
            f"weights={self.weights}: of {self.name} name a file of weights, or random",
        )

    @property
    def named(self) -> bool:
        """Whether it is somebody else's."""
        return ":" in self.name

    def file(self, store: Path, watch: Watch = silent) -> Path | None:
        """The file of weights; `None` for random ones."""
        if self.weights == "random":
            return None
        if self.weights == "own":
            return OWN_WEIGHTS[self.name]
        if self.weights != "hub":
            file = Path(self.weights)
            require(file.is_file(), f"backbone.weights={file}: there is no such file")
            return file
        url = HUB_WEIGHTS[self.name]
        file = store / "weights" / url.rpartition("/")[2]
        if not file.is_file():
            require(
                self.download,
                f"backbone.weights=hub: place {file.name} (from {url}) in {file.parent}, "
                "or allow backbone.download=true",
            )
            download(url, file, f"sha256:{file.stem.rpartition('-')[2]}", watch)
        return file


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig:
    """How features are made and kept.

    Attributes:
        cache: the folder for features and downloads; by default `$FEDSOFIM_CACHE`, or `fedsofim`
            in the user's cache folder.
        batch: images at a time; by default as many as pay, fewer of large ones and where memory
            does not suffice.
        device: `auto` takes a GPU if there is one; `cpu`, `cuda` or `mps`.
        arithmetic: of the backbone. `mixed` is half precision where torch deems it safe, in a
            backbone whose features of noise stay what they were; `auto` is that on a GPU with
            hardware for it, and `single` elsewhere.
        precision: of what is kept. `half` rounds each value by itself. `uint8` codes each column
            from its least to its largest value: smaller, but one record then moves the features of
            all others, more than its clipped gradient accounts for. It is for public data only.
        probes: how many pink-noise images are passed through as well and kept with the features,
            for preconditioners that may not see data. By default none are, and a transform that
            needs some has them made.
    """

    cache: str | None = None
    batch: int | None = None
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    arithmetic: Literal["auto", "single", "mixed"] = "auto"
    precision: Literal["half", "uint8"] = "half"
    probes: int | None = None

    def __post_init__(self) -> None:
        require(self.batch is None or self.batch >= 1, f"batch={self.batch}: must be at least 1")
        require(self.probes is None or self.probes >= 0, f"probes={self.probes}: must be >= 0")

    @property
    def store(self) -> Path:
        """The folder for features and downloads."""
        if self.cache:
            return Path(self.cache)
        if named := os.environ.get("FEDSOFIM_CACHE"):
            return Path(named)
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsofim"
