"""The paper's two backbones, for 32 x 32 colour images: ResNet-20 and VGG-16 with batch norm.

Parameters are named as in chenyaofo/pytorch-cifar-models, so its weights load here and ours there.
"""

import lzma
from abc import ABC, abstractmethod
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedsofim.core.errors import ConfigError, require
from fedsofim.data.recipe import Preprocessing

# A file of weights in single precision has less.
LARGEST = 100_000_000
VGG16_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class Backbone(nn.Module, ABC):
    """A network that ends in a linear classifier of its features."""

    width: ClassVar[int]
    preprocessing: Preprocessing = Preprocessing()

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """The features of normalised images: `(B, 3, size, size)` to `(B, width)`."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The classifier's logits."""


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, by 1 x 1 convolution where the shape changes."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = (
            nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))
            if (width_in, stride) != (width, 1)
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class ResNet20(Backbone):
    """CIFAR's ResNet-20 (He et al. 2016): 64 features, the mean over the last block's map."""

    width = 64

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._layer(16, 16, 1)
        self.layer2 = self._layer(16, 32, 2)
        self.layer3 = self._layer(32, 64, 2)
        self.fc = nn.Linear(64, classes)
        _init(self)

    @staticmethod
    def _layer(width_in: int, width: int, stride: int) -> nn.Sequential:
        first = ResidualBlock(width_in, width, stride)
        return nn.Sequential(first, *(ResidualBlock(width, width, 1) for _ in range(2)))

    def embed(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        maps: Tensor = self.layer3(self.layer2(self.layer1(x)))
        return maps.mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.embed(x))
        return logits


class VGG16(Backbone):
    """VGG-16 with batch norm (Simonyan & Zisserman 2015): 512 features, the last block's map.

    Five poolings leave one pixel of a 32 x 32 image, so its mean is the map itself.
    """

    width = 512

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for block in VGG16_WIDTHS:
            for width in block:
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            # Rounded up, so that images smaller than 32 x 32 keep a pixel to the end.
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        hidden = [nn.Linear(512, 512), nn.ReLU(), nn.Dropout()]
        hidden += [nn.Linear(512, 512), nn.ReLU(), nn.Dropout()]
        self.classifier = nn.Sequential(*hidden, nn.Linear(512, classes))
        _init(self)

    def embed(self, x: Tensor) -> Tensor:
        maps: Tensor = self.features(x)
        return maps.mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.embed(x))
        return logits


BACKBONES: Mapping[str, type[Backbone]] = {"resnet20": ResNet20, "vgg16": VGG16}


def _init(network: nn.Module) -> None:
    """Convolutions as He et al. (2015); the rest is torch's own."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _ready(network: Backbone) -> Backbone:
    """For inference, in the layout that CPUs convolve fastest."""
    network.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def random_backbone(name: str, seed: int) -> Backbone:
    """A backbone with random weights, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _ready(BACKBONES[name]())


def _opened(file: Path) -> Path | BytesIO:
    """The file itself, or the content of a `.xz` file, which may not be larger than any weights."""
    if file.suffix != ".xz":
        return file
    with lzma.open(file) as stream:
        content = stream.read(LARGEST + 1)
    require(len(content) <= LARGEST, f"more than {LARGEST:,} bytes when unpacked")
    return BytesIO(content)


def backbone(name: str, weights: Path | None) -> Backbone:
    """Any backbone by its name, with the weights of a file or with random ones."""
    if ":" in name:
        from fedsofim.data.named_backbones import named_backbone

        return _ready(named_backbone(name, weights))
    return load_backbone(name, weights) if weights else random_backbone(name, seed=0)


def read_state(file: Path) -> Mapping[str, Tensor]:
    """The state dict that a file of weights holds; nothing in it is run."""
    try:
        state = torch.load(_opened(file), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can fail in any of its parts
        first = str(error).strip().partition("\n")[0][:120]
        raise ConfigError(f"{file}: not a readable file of weights ({first})") from None
    require(
        isinstance(state, Mapping) and all(isinstance(v, Tensor) for v in state.values()),
        f"{file}: not a state dict of tensors",
    )
    found: Mapping[str, Tensor] = state
    return found


def finite_state(network: nn.Module, file: Path) -> None:
    """Refuse weights that are not finite."""
    finite = all(bool(torch.isfinite(p).all()) for p in network.state_dict().values())
    require(finite, f"{file}: has weights that are not finite")


def load_backbone(name: str, file: Path) -> Backbone:
    """A backbone with the weights of a file: a state dict, in any float precision; maybe `.xz`."""
    state = read_state(file)
    last = {"resnet20": "fc.bias", "vgg16": "classifier.6.bias"}[name]
    require(last in state, f"{file}: not the weights of a {name} (it has no {last})")
    network = BACKBONES[name](classes=len(state[last]))
    try:
        network.load_state_dict(state)  # copies into float32
    except RuntimeError as error:
        told = " ".join(str(error).split())
        raise ConfigError(f"{file}: not the weights of a {name}: {told[:200]}") from None
    finite_state(network, file)
    return _ready(network)
