"""What a transform's factors are measured on."""

from pathlib import Path

import numpy as np

from fedsofim.config.schema import Config
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.rng import Purpose, stream
from fedsofim.data import npz
from fedsofim.data.download import Watch, silent
from fedsofim.data.images import image_array
from fedsofim.data.own import Data
from fedsofim.data.pixels import normalise
from fedsofim.data.probe_cache import probes_of
from fedsofim.data.probes import Vocabulary, pink_noise, token_noise
from fedsofim.data.records import Dataset, probe_features
from fedsofim.models.kinds import Network
from fedsofim.models.records import Records
from fedsofim.transforms.kfc import KFC, Transform

# How many probe images are made, or private records used by the oracle, if nothing else is said.
MADE, PRIVATE = 512, 4096
# The decay that probes stored with features have; it says nothing where none are made.
STORED = 1.0


def probes_for(transform: Transform, network: Network, data: Dataset, seed: int) -> Records | None:
    """The records that the factors are measured on: probes with random labels, never data.

    Only the oracle takes its records from the training data, and it promises nothing.

    Args:
        transform: the config.
        network: the model.
        data: tells the probes' shape and brings, for features, the probes themselves.
        seed: of the run; the probes are public and follow from it.
    """
    if not isinstance(transform, KFC):
        return None
    made = data.train_x.ndim == 4 and transform.probes is None and transform.source == "probes"
    require(
        made or transform.decay == STORED,
        f"transform.noise={transform.noise}, transform.alpha={transform.alpha:g}: no probes are "
        "made here, for features bring theirs (pink, alpha 1), and tokens are drawn alike; make "
        "others yourself, pass them through the same backbone, and give transform.probes=FILE.npz "
        "alone",
    )
    rng = stream(seed, Purpose.PROBE)
    if transform.source == "private":
        require(len(data.train_y) > 0, "transform=oracle: a server has no private records to read")
        some = rng.permutation(len(data.train_y))[: transform.count or PRIVATE]
        return network.records(data.train_x[some], data.train_y[some])
    x = _inputs(transform, data, network.vocabulary, rng)
    return network.records(x, rng.integers(0, data.classes, len(x)))


def with_probes(config: Config, stored: Array | None, watch: Watch = silent) -> Array | None:
    """The probes that were stored with features or else, if needed, those of a run's backbone."""
    transform = config.transform
    if not isinstance(transform, KFC) or transform.source != "probes" or transform.probes:
        return stored
    known = stored is not None or isinstance(config.dataset, Data) or not config.model.linear
    return stored if known else probes_of(config.extraction, watch)


def _inputs(transform: KFC, data: Dataset, vocabulary: int, rng: np.random.Generator) -> Array:
    shape, count = data.train_x.shape[1:], transform.count or MADE
    if transform.probes is not None:
        x = _from_file(Path(transform.probes), rng, transform.count or PRIVATE, len(shape) == 3)
    elif vocabulary:
        tokens = Vocabulary(size=vocabulary)  # 0 is padding, and the rest are drawn alike
        ids = token_noise(rng, count, tokens, shortest=1, length=shape[0]).ids
        return ids.astype(np.float32)
    elif len(shape) == 3:
        require(shape[1] == shape[2], f"transform=kfc: makes square probes, not {shape[1:]}")
        return pink_noise(rng, count, transform.decay, channels=shape[0], size=shape[1])
    elif data.probe_x is not None:
        x = data.probe_x
    else:
        raise ConfigError(
            "transform=kfc: this data brings no probes; name a file with transform.probes=FILE.npz "
            "whose probe_x holds the features of noise images through the same backbone"
        )
    require(
        x.shape[1:] == shape,
        f"transform.probes: probes have shape {x.shape[1:]}, and records {shape}",
    )
    return x[: transform.count]


def _from_file(file: Path, rng: np.random.Generator, count: int, images: bool) -> Array:
    """Probes of the user's own: `probe_x`, or some of a file of public images."""
    require(file.is_file(), f"transform.probes={file}: there is no such file")
    if images:
        name = image_array(npz.headers(file), "train")
        if name is not None:
            public = npz.read(file, name)[name]
            some = np.sort(rng.permutation(len(public))[:count])
            colour = public[some] if public.ndim == 4 else public[some, ..., None]
            return normalise(np.broadcast_to(colour, (*colour.shape[:3], 3)))
    arrays = npz.read(file)
    x = probe_features(arrays)
    if x is None:
        raise ConfigError(
            f"transform.probes={file}: no array probe_x; it holds {', '.join(arrays)}"
        )
    return x
