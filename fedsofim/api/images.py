"""From images to what a trained model takes, as its run did it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsofim.config.schema import Config
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import sha256
from fedsofim.data import npz
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.images import Batch
from fedsofim.data.pixels import normalise
from fedsofim.data.recipe import OWN_WEIGHTS, BackboneConfig
from fedsofim.data.vision import optional
from fedsofim.runs.experiment import takes_pixels

if TYPE_CHECKING:
    from fedsofim.data.backbones import Backbone

UNKNOWN = "which backbone made the features of this run is not known, so it takes features alone"


def preparation(config: Config, weights: Path | None = None) -> Callable[[Batch], Array]:
    """What turns uint8 images, each `(H, W, 3)`, into the inputs of a run's model.

    Args:
        config: of the run.
        weights: the backbone's, if they are elsewhere now.
    """
    if not config.model.linear:
        require_pixels(config)
        return lambda batch: normalise(np.asarray(batch))
    network = backbone_of(config, weights)
    import torch

    from fedsofim.data.extraction import embed, inputs

    def features(batch: Batch) -> Array:
        with torch.inference_mode():
            return embed(network, inputs(batch, network.preprocessing))

    return features


def require_pixels(config: Config) -> None:
    """Refuse images for a network that was not trained from the pixels of image files on."""
    given = config.dataset.name in ("arrays", "owners")
    told = f"model={config.model.name}: was trained on arrays as they were given, so it takes these"
    require(not given and takes_pixels(config), told)


def backbone_of(config: Config, weights: Path | None = None) -> "Backbone":
    """The frozen network that made the features of a run."""
    optional("torch")
    from fedsofim.data.backbones import backbone

    made = made_by(config)
    file = _weights(config, made, weights)
    return backbone(made["name"], file)


def made_by(config: Config) -> dict[str, Any]:
    """The backbone that made the features of a run: its `name` and, from a file, the `sha256`."""
    dataset = config.dataset
    require(
        isinstance(dataset, DatasetConfig) and dataset.name not in ("arrays", "owners"), UNKNOWN
    )
    assert isinstance(dataset, DatasetConfig)
    if dataset.of_images() or dataset.path is None:
        return {"name": config.backbone.name}
    made = told_by(dataset.file)
    require(bool(made), f"dataset.path={dataset.path}: does not say what made it; {UNKNOWN}")
    return made


def told_by(file: Path) -> dict[str, Any]:
    """The backbone that a file of features says it was made by, if it does."""
    return dict(npz.provenance(npz.read(file, npz.PROVENANCE)).get("backbone", {}))


def _weights(config: Config, made: dict[str, Any], given: Path | None) -> Path | None:
    """The file of the weights, by content where that is known; `None` for random ones."""
    store, wanted = config.features.store, made.get("sha256")
    require(given is None or given.is_file(), f"{given}: there is no such file of weights")
    if wanted is None:
        return given or config.backbone.file(store)
    if wanted == "random":
        return None
    for file in _places(config.backbone, made["name"], store, given):
        if file.is_file() and sha256(file) == wanted:
            return file
    raise ConfigError(
        f"the features were made by {made['name']} with the weights {made.get('weights', '')} "
        f"(SHA-256 {wanted[:12]} …), which are not here; name their file with --weights"
    )


def _places(known: BackboneConfig, name: str, store: Path, given: Path | None) -> Iterator[Path]:
    """Where the weights of a backbone may be."""
    if given:
        yield given
        return
    yield from (file for own, file in OWN_WEIGHTS.items() if own == name)
    yield Path(known.weights)
    yield from sorted((store / "weights").glob("*"))
