"""A trained model from its input to probabilities, as one torch module."""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from fedsofim.data.backbones import Backbone
from fedsofim.data.recipe import Preprocessing


class Pixels(nn.Module):
    """uint8 images `(N, H, W, 3)` as a backbone takes them, `(N, 3, size, size)`.

    Args:
        how: what is done to pixels.
        resize: whether to the backbone's size; enlarging needs no filter, and then has none.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, how: Preprocessing, *, resize: bool) -> None:
        super().__init__()
        self.size = how.size if resize else None
        self.register_buffer("mean", torch.tensor(how.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(how.std)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        x = images.permute(0, 3, 1, 2).float() / 255
        if self.size is not None:
            size = (self.size, self.size)
            x = interpolate(x, size, mode="bilinear", align_corners=False, antialias=True)
        return (x - self.mean) / self.std


class Features(nn.Module):
    """A backbone up to its features."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone.embed(x)


def whole(logits: nn.Module, *, images: bool, backbone: Backbone | None = None) -> nn.Sequential:
    """From records, or from images on, to the probability of each class.

    Args:
        logits: the trained module.
        images: whether the input is uint8 images, and not what the trained module takes.
        backbone: what made the features, if it takes features.
    """
    before: list[nn.Module] = []
    if images:
        how = Preprocessing() if backbone is None else backbone.preprocessing
        before.append(Pixels(how, resize=backbone is not None))
    if backbone is not None:
        before.append(Features(backbone))
    return nn.Sequential(*before, logits, nn.Softmax(dim=1)).eval()
