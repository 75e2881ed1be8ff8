"""How many records, features, classes and clients there are: public numbers, without extraction.

Nothing here downloads, reads pixels or passes images through a backbone.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsofim.core.errors import ConfigError, require
from fedsofim.data import npz
from fedsofim.data.classes import NAMES, names_in
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.flower_partition import client_count as flower_count
from fedsofim.data.flower_partition import is_flower
from fedsofim.data.hugging_face import HuggingFace
from fedsofim.data.images import folder_files, image_array
from fedsofim.data.own import Data
from fedsofim.data.recipe import BackboneConfig
from fedsofim.data.vision import optional

# Training records and classes of the sets that have a name (MedMNIST: Yang et al. 2023).
KNOWN = {
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
    "bloodmnist": (11_959, 8),
    "breastmnist": (546, 2),
    "chestmnist": (78_468, 2),
    "dermamnist": (7_007, 7),
    "octmnist": (97_477, 4),
    "organamnist": (34_561, 11),
    "organcmnist": (12_975, 11),
    "organsmnist": (13_932, 11),
    "pathmnist": (89_996, 9),
    "pneumoniamnist": (4_708, 2),
    "retinamnist": (1_080, 5),
    "tissuemnist": (165_466, 8),
}
WIDTHS = {"resnet20": 64, "vgg16": 512}


def count(dataset: DatasetConfig | Data, backbone: BackboneConfig) -> tuple[int, int, int]:
    """Training records, features and classes."""
    if isinstance(dataset, Data):
        data = dataset.load()
        return len(data.train_y), math.prod(data.train_x.shape[1:]), data.classes
    if isinstance(dataset, HuggingFace):
        records, features, classes = dataset.sizes()
        return records, features or _width(backbone), classes
    width = _width(backbone)
    agreed = dataset.agreed.count if dataset.agreed else None
    if dataset.path is not None:
        records, features, classes = _in_file(Path(dataset.path))
        return records, features or width, agreed or classes
    if dataset.name == "folder":
        tree = folder_files(Path(str(dataset.root)), ["any"] if agreed else ())
        return sum(map(len, tree["train"].values())), width, agreed or len(tree["train"])
    require(dataset.name in KNOWN, f"dataset={dataset.name}: how much data there is, is not known")
    records, classes = KNOWN[dataset.name]
    return records, width, agreed or classes


def client_count(partition: Mapping[str, Any], dataset: DatasetConfig | Data) -> int | None:
    """How many clients the data or a partitioner's own arguments name, if `clients` does not."""
    kind = partition.get("kind")
    if partition.get("clients") is None and kind == "natural":
        return dataset.client_count()
    if partition.get("clients") is None and is_flower(kind):
        return flower_count(str(kind), partition.get("args") or {}, dataset.client_count)
    return None


def _width(backbone: BackboneConfig) -> int:
    """How many features a backbone gives; one of somebody else's is made to say so."""
    if not backbone.named:
        return WIDTHS[backbone.name]
    optional("torch")
    from fedsofim.data.named_backbones import named_backbone

    return named_backbone(backbone.name, None).width


def _in_file(file: Path) -> tuple[int, int, int]:
    """Those of a `.npz` file; features are 0 where it holds images."""
    require(file.is_file(), f"dataset.path={file}: there is no such file")
    headers = npz.headers(file)
    name = image_array(headers, "train")
    if name is None:
        raise ConfigError(f"{file}: no array train_x or train_images")
    shape = headers[name].shape
    labels = ("train_y", "train_labels")
    found = npz.read(file, *labels, npz.PROVENANCE, NAMES)
    told = len(names_in(found)) or npz.provenance(found).get("dataset", {}).get("classes")
    whole = [found[n] for n in labels if n in found and np.issubdtype(found[n].dtype, np.integer)]
    largest = max((int(y.max()) for y in whole if y.size), default=1)
    return shape[0], shape[1] if len(shape) == 2 else 0, int(told or largest + 1)
