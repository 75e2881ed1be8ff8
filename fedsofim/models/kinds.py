"""What is trained: a linear head on features, or a deep network from pixels on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.models import head
from fedsofim.models.records import Records

if TYPE_CHECKING:
    from torch import nn


class Network(Protocol):
    """A model whose input and output are known."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are, if records are sequences of them; 0 if they are numbers."""

    def init(self, rng: np.random.Generator) -> Array:
        """Initial parameters, as one array of at least two dimensions."""

    def records(self, x: Array, y: Array) -> Records:
        """Labelled records of `x` `(N, ...)` and integer labels `y` `(N,)`."""


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """A kind of model; its fields are its settings.

    Attributes:
        name: what the config calls it.
        linear: whether it is a linear head on features; others take images as well.
    """

    name: ClassVar[str]
    linear: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = vars(cls).get("name", cls.__name__)

    @abstractmethod
    def network(self, shape: tuple[int, ...], classes: int) -> Network:
        """The model for records of this shape: `(F,)` features or `(C, H, W)` images."""


class HeadNetwork(NamedTuple):
    """A linear softmax head."""

    features: int
    classes: int

    @property
    def vocabulary(self) -> int:
        """None: features are numbers."""
        return 0

    def init(self, rng: np.random.Generator) -> Array:
        """Initial parameters, `(K, F+1)`."""
        return head.init(rng, self.classes, self.features)

    def records(self, x: Array, y: Array) -> head.Examples:
        """Records for the head."""
        return head.examples(x, y, self.classes)


@dataclass(frozen=True, kw_only=True)
class Head(Model):
    """A linear softmax head on frozen features; NumPy alone."""

    name: ClassVar[str] = "head"
    linear: ClassVar[bool] = True

    def network(self, shape: tuple[int, ...], classes: int) -> Network:
        require(len(shape) == 1, f"model=head: takes features; for {shape} images use model=cnn")
        return HeadNetwork(shape[0], classes)


@dataclass(frozen=True, kw_only=True)
class Deep(Model):
    """A torch network; each subclass makes it in `module`.

    Attributes:
        microbatch: records that are passed through at a time; for memory, not for results.
        grads: what computes the gradients of layers that are not Linear, Conv2d, GroupNorm or
            Embedding: nothing (`own`), so that they are refused, or `opacus`.
    """

    microbatch: int = 128
    grads: Literal["own", "opacus"] = "own"

    def __post_init__(self) -> None:
        require(self.microbatch >= 1, f"microbatch={self.microbatch}: must be at least 1")

    @property
    def tokens(self) -> int:
        """How many tokens there are, if records are sequences of them; 0 if they are numbers."""
        return 0

    @abstractmethod
    def module(self, shape: tuple[int, ...], classes: int) -> "nn.Module":
        """The module that gives logits `(N, classes)` for records of this shape."""

    def network(self, shape: tuple[int, ...], classes: int) -> Network:
        try:
            from fedsofim.models.fitting import require_separate
            from fedsofim.models.networks import DeepNetwork

            opacus = self.grads == "opacus"
            module = self.module(shape, classes)
            tokens, size = self.tokens, self.microbatch
            network = DeepNetwork(module, classes, size, opacus=opacus, vocabulary=tokens)
        except ModuleNotFoundError as error:
            needs = f"model={self.name}: needs {error.name}; pip install 'fedsofim[vision]'"
            require(error.name != "torch", needs)
            needs = f"model.grads=opacus: needs {error.name}; pip install 'fedsofim[opacus]'"
            require(error.name != "opacus", needs)
            raise
        require_separate(network, shape)
        return network


@dataclass(frozen=True, kw_only=True)
class CNN(Deep):
    """Blocks of a 3x3 convolution and a pooling, each twice as wide, and a linear layer.

    Attributes:
        width: channels of the first block.
        blocks: how many; each halves height and width.
        activation: what follows a convolution; bounded ones suit clipping.
    """

    name: ClassVar[str] = "cnn"
    width: int = 16
    blocks: int = 3
    activation: Literal["tanh", "relu"] = "tanh"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width >= 1, f"width={self.width}: must be at least 1")
        require(self.blocks >= 1, f"blocks={self.blocks}: must be at least 1")

    def module(self, shape: tuple[int, ...], classes: int) -> "nn.Module":
        from fedsofim.models.modules import cnn

        require(len(shape) == 3, f"model=cnn: takes images, not {shape} features; use model=mlp")
        require(
            min(shape[1:]) >= 2**self.blocks,
            f"model.blocks={self.blocks}: {shape[1]} x {shape[2]} images are too small for it",
        )
        return cnn(shape, classes, self.width, self.blocks, self.activation)


@dataclass(frozen=True, kw_only=True)
class MLP(Deep):
    """Fully connected layers, on images or on features.

    Attributes:
        width: units of a hidden layer.
        layers: how many hidden layers.
        activation: what follows a hidden layer.
    """

    name: ClassVar[str] = "mlp"
    width: int = 64
    layers: int = 1
    activation: Literal["tanh", "relu"] = "tanh"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width >= 1, f"width={self.width}: must be at least 1")
        require(self.layers >= 0, f"layers={self.layers}: must be >= 0")

    def module(self, shape: tuple[int, ...], classes: int) -> "nn.Module":
        from fedsofim.models.modules import mlp

        return mlp(shape, classes, self.width, self.layers, self.activation)


@dataclass(frozen=True, kw_only=True)
class ResNet20(Deep):
    """ResNet-20 with group norm, from images on; `blocks` and `width` make it deeper and wider.

    Attributes:
        width: channels of the first of three stages; each further one has twice as many.
        blocks: residual blocks of a stage: 3 for ResNet-20, 5 for ResNet-32.
        groups: channel groups of a norm.
    """

    name: ClassVar[str] = "resnet20"
    width: int = 16
    blocks: int = 3
    groups: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.blocks >= 1, f"blocks={self.blocks}: must be at least 1")
        good = self.groups >= 1 and self.width >= 1 and self.width % self.groups == 0
        require(good, f"groups={self.groups}: must divide the width, {self.width}")

    def module(self, shape: tuple[int, ...], classes: int) -> "nn.Module":
        from fedsofim.models.modules import resnet

        require(len(shape) == 3, f"model=resnet20: takes images, not {shape} features")
        return resnet(shape, classes, self.width, self.blocks, self.groups)


@dataclass(frozen=True, kw_only=True)
class Text(Deep):
    """Token vectors, a layer on each, their mean, and a linear layer; token 0 is padding.

    Attributes:
        vocabulary: how many tokens there are; public.
        width: numbers of a token's vector.
        hidden: units of the layer on each token.
    """

    name: ClassVar[str] = "text"
    vocabulary: int
    width: int = 32
    hidden: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        most = 1 << 24  # what float32, in which records are kept, counts up to
        good = 2 <= self.vocabulary <= most
        require(good, f"vocabulary={self.vocabulary}: must be from 2 to {most}")
        for name in ("width", "hidden"):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def tokens(self) -> int:
        return self.vocabulary

    def module(self, shape: tuple[int, ...], classes: int) -> "nn.Module":
        from fedsofim.models.modules import TextClassifier

        require(len(shape) == 1, f"model=text: takes (length,) tokens, not {shape} records")
        return TextClassifier(self.vocabulary, classes, self.width, self.hidden)


@dataclass(frozen=True, kw_only=True)
class Module(Deep):
    """A torch module of the user's.

    Attributes:
        factory: `package.module:function`; called with a record's shape and the number of
            classes, it returns a `torch.nn.Module` that gives logits `(N, classes)`.
        vocabulary: how many tokens there are, if records are sequences of them.
    """

    name: ClassVar[str] = "module"
    factory: str
    vocabulary: int = 0

    @property
    def tokens(self) -> int:
        return self.vocabulary

    def module(self, shape: tuple[int, ...], classes: int) -> "nn.Module":
        from fedsofim.models.modules import from_factory

        return from_factory(self.factory, shape, classes)


MODELS: dict[str, type[Model]] = {m.name: m for m in (Head, CNN, MLP, ResNet20, Text, Module)}
