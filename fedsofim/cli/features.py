"""The command `features`: images to a file of features."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsofim.cli.terminal import console, watching
from fedsofim.config.build import build
from fedsofim.core.errors import require
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.features import Extraction
from fedsofim.data.recipe import BackboneConfig, FeaturesConfig

USAGE = """usage: fedsofim features dataset=... [backbone=...] [out=FILE.npz] [key=value ...]

Images to a file of features, with the keys of 'fedsofim run':
  fedsofim features dataset=bloodmnist dataset.root=images out=bloodmnist.npz
  fedsofim features dataset=folder dataset.root=my-images backbone=vgg16 backbone.weights=vgg16.pt
Without out they go to the cache, where 'fedsofim run' finds them. Use a file of features with
  fedsofim run dataset=npz dataset.path=bloodmnist.npz"""


def split_arguments(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """The file that `out=` names, and the other arguments."""
    outs = [a.removeprefix("out=") for a in arguments if a.startswith("out=")]
    require(len(outs) <= 1 and "" not in outs, "out: name one file")
    return Path(outs[0]) if outs else None, [a for a in arguments if not a.startswith("out=")]


def features(values: Mapping[str, Any], out: Path | None) -> None:
    """Extract features to `out`, or to the cache, and say where they are."""
    extraction = Extraction(
        dataset=build(DatasetConfig, values["dataset"], "dataset"),
        backbone=build(BackboneConfig, values["backbone"], "backbone"),
        features=build(FeaturesConfig, values["features"], "features"),
    )
    out_to = console()
    with watching(out_to) as watch:
        if out is not None:
            extraction.write(out, watch)
        file = out or extraction.file(watch)
    size = file.stat().st_size / 1e6
    out_to.print(f"Features in {file} ({size:.1f} MB)", soft_wrap=True, markup=False)
