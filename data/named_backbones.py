"""Backbones of others: any of torchvision's or timm's by name, or a module of the user's own.

backbone=torchvision:resnet18 backbone.weights=resnet18.pt
backbone=timm:vit_small_patch14_dinov2.lvd142m backbone.weights=dinov2.pt
backbone=mypackage.nets:make backbone.weights=mine.pt
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsofim.core.errors import ConfigError, require
from fedsofim.core.loading import load_object
from fedsofim.data.backbones import Backbone, finite_state, read_state
from fedsofim.data.recipe import IMAGENET, Preprocessing
from fedsofim.data.vision import optional, torchvision

# What torchvision's models call the part that tells classes apart, from the outside in.
HEADS = ("fc", "classifier", "head", "heads")


class Named(Backbone):
    """A module of somebody else's, up to its features.

    Args:
        name: what it is called here.
        module: gives features `(B, F)`.
        preprocessing: what it takes.
    """

    def __init__(self, name: str, module: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.module, self.preprocessing = module.eval(), preprocessing
        size = preprocessing.size
        try:
            with torch.inference_mode():
                shape = tuple(self.embed(torch.zeros(1, 3, size, size)).shape)
        except Exception as error:  # a module of the user's can fail in any way
            told = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"backbone={name}: fails on a {size} x {size} image ({told})"
            ) from None
        require(
            len(shape) == 2 and shape[0] == 1,
            f"backbone={name}: gives {shape} for one image; features are (1, F)",
        )
        self.width = shape[1]  # type: ignore[misc]

    def embed(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x)


def named_backbone(name: str, weights: Path | None) -> Named:
    """The backbone `torchvision:NAME`, `timm:NAME` or `package.module:factory`.

    Args:
        name: which.
        weights: a file of its weights, with its own head or without; random ones by default, the
            same in every process.
    """
    library, _, model = name.partition(":")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, how = {"torchvision": _torchvision, "timm": _timm}.get(library, _own)(name, model)
    if weights is not None:
        _fill(module, weights, name)
    return Named(name, module, how)


def _torchvision(name: str, model: str) -> tuple[nn.Module, Preprocessing]:
    models = torchvision("models")
    known = models.list_models(module=models)
    told = f"backbone={name}: torchvision has no such classifier"
    require(model in known, told + _nearest(known, model))
    extra = {"init_weights": True} if model in ("googlenet", "inception_v3") else {}
    module = models.get_model(model, weights=None, **extra)
    return _beheaded(module, name), IMAGENET


def _nearest(known: Sequence[str], model: str) -> str:
    """Of hundreds of names the one that was probably meant, if one is near."""
    near = difflib.get_close_matches(model, known, n=1, cutoff=0.66)
    return f"; did you mean {near[0]}?" if near else ""


def _beheaded(module: nn.Module, name: str) -> nn.Module:
    """The module without its last linear layer."""
    head = next((part for part in HEADS if hasattr(module, part)), None)
    require(head is not None, f"backbone={name}: where its classifier begins is not known")
    last = getattr(module, str(head))
    if isinstance(last, nn.Linear):
        setattr(module, str(head), nn.Identity())
        return module
    linear = [i for i, part in enumerate(last) if isinstance(part, nn.Linear)]
    require(bool(linear), f"backbone={name}: its classifier has no linear layer to take away")
    last[linear[-1]] = nn.Identity()
    return module


def _timm(name: str, model: str) -> tuple[nn.Module, Preprocessing]:
    torchvision()  # which timm imports, beside whatever torch there is
    timm = optional("timm", f"backbone={name} needs", "backbones")
    plain = model.partition(".")[0]  # what follows names weights
    told = f"backbone={name}: timm has no such model"
    require(timm.is_model(plain), told + _nearest(timm.list_models(), plain))
    try:
        module = timm.create_model(model, pretrained=False, num_classes=0)
    except RuntimeError as error:
        raise ConfigError(f"backbone={name}: {error}") from None
    config = timm.data.resolve_model_data_config(module)
    size = config["input_size"][-1]
    return module, Preprocessing(size=size, mean=tuple(config["mean"]), std=tuple(config["std"]))


def _own(name: str, model: str) -> tuple[nn.Module, Preprocessing]:
    factory = load_object(name, "backbone")
    require(callable(factory), f"backbone={name}: must be a function that makes a torch module")
    made: Callable[[], Any] = factory  # type: ignore[assignment]
    module = made()
    require(isinstance(module, nn.Module), f"backbone={name}: makes no torch module")
    how = getattr(module, "preprocessing", IMAGENET)
    if isinstance(how, Mapping):
        how = Preprocessing(**how)
    require(isinstance(how, Preprocessing), f"backbone={name}: preprocessing has size, mean, std")
    return module, how


def _fill(module: nn.Module, file: Path, name: str) -> None:
    """Load weights; what a head of the file's has beyond the module is left out."""
    state = read_state(file)
    try:
        missing, _ = module.load_state_dict(state, strict=False)
    except RuntimeError as error:
        told = " ".join(str(error).split())[:200]
        raise ConfigError(f"{file}: not the weights of {name}: {told}") from None
    require(
        not missing,
        f"{file}: not the weights of {name}: it lacks {', '.join(missing[:3])}",
    )
    finite_state(module, file)
