"""Make the public statistics that come with a backbone's weights: mean, covariance, usual norms.

They are those of CIFAR-100's 10,000 test images, which are public and which the backbone was not
trained on. The features are made by the program:

    fedsofim features dataset=cifar100 dataset.root=FOLDER
    python scripts/public_statistics.py FEATURES.npz data/weights/resnet20-cifar100-public.npz
"""

import sys
from pathlib import Path

import numpy as np


def write_statistics(features: np.ndarray, out: Path, dtype: type = np.float32) -> None:
    """Write the statistics of features `(N, F)`, the covariance in this precision."""
    x = features.astype(np.float64)
    mean = x.mean(axis=0)
    centred = x - mean
    np.savez(
        out,
        mean=mean.astype(np.float32),
        covariance=(centred.T @ centred / len(x)).astype(dtype),
        radius=np.float32(np.median(np.linalg.norm(x, axis=1))),
        centred_radius=np.float32(np.median(np.linalg.norm(centred, axis=1))),
    )


def main(features: Path, out: Path) -> None:
    """Read `test_x` `(N, F)`, and write its statistics."""
    with np.load(features, allow_pickle=False) as saved:
        write_statistics(saved["test_x"], out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
