"""Regenerate an embedded file of features from images, and compare the two.

    python scripts/check_embedded.py cifar10 DIR --backbone vgg16

DIR holds `cifar-10-batches-py/` or `cifar10.npz`; scripts/pack_images.py makes the latter.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from fedsofim.cli.terminal import watching
from fedsofim.core.errors import ConfigError
from fedsofim.data import npz
from fedsofim.data.arithmetic import Workplace
from fedsofim.data.backbones import load_backbone
from fedsofim.data.catalog import locate
from fedsofim.data.datasets import EMBEDDED, DatasetConfig
from fedsofim.data.extraction import extract
from fedsofim.data.features import code
from fedsofim.data.recipe import OWN_WEIGHTS


def regenerate(dataset: str, backbone: str, root: Path) -> dict[str, np.ndarray]:
    """The features of a data set's images, before they are coded in 8 bits."""
    images = locate(DatasetConfig(name=dataset, root=str(root)), root).open()
    network = load_backbone(backbone, OWN_WEIGHTS[backbone])
    with watching(Console(highlight=False)) as watch:
        return extract(Workplace(network), images, watch=watch)


def compare(new: Mapping[str, np.ndarray], old: Mapping[str, np.ndarray]) -> int:
    """Print how features differ, and return the largest difference, in quantisation steps."""
    worst = 0
    for split in ("train", "val", "test"):
        if f"{split}_x" not in old:
            continue
        labels = bool(np.array_equal(new[f"{split}_y"], old[f"{split}_y"]))
        codes = code(new[f"{split}_x"], old["lo"], old["scale"])
        difference = np.abs(codes.astype(int) - old[f"{split}_x"])
        worst = max(worst, int(difference.max()), 0 if labels else 256)
        print(
            f"{split}: {codes.shape[0]:,} records, labels {'equal' if labels else 'DIFFER'}; "
            f"{(difference > 0).sum():,} of {difference.size:,} codes differ, "
            f"by at most {difference.max()}"
        )
    return worst


def main() -> None:
    """Run the command line; exit code 1 where the files differ by more than rounding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "dataset", choices=sorted({f.stem.split("-")[0] for f in EMBEDDED.glob("*")})
    )
    parser.add_argument("root", type=Path, help="the folder that holds its images")
    parser.add_argument("--backbone", choices=sorted(OWN_WEIGHTS), default="resnet20")
    arguments = parser.parse_args()
    old = npz.read(EMBEDDED / f"{arguments.dataset}-{arguments.backbone}.npz")
    npz.check_seal(old)
    try:
        new = regenerate(arguments.dataset, arguments.backbone, arguments.root)
    except ConfigError as error:
        print(f"check_embedded: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0 if compare(new, old) <= 1 else 1)


if __name__ == "__main__":
    main()
