"""The features of probes through a backbone: made once, when a transform first asks for them.

They depend on the backbone alone, so all data sets share them.
"""

from pathlib import Path

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.files import sha256
from fedsofim.data import npz
from fedsofim.data.download import Watch, silent
from fedsofim.data.features import NO_PROBES, Extraction, half, require_writable, save
from fedsofim.data.recipe import Preprocessing
from fedsofim.data.records import probe_features
from fedsofim.data.vision import optional

COUNT = 4096


def probes_of(extraction: Extraction, watch: Watch = silent) -> Array | None:
    """The features of pink-noise images, `(COUNT, F)`, through the backbone of a run from images.

    `None` where features come from a file, which alone can tell, or where `features.probes` says
    how many go with the features.
    """
    if extraction.features.probes is not None or extraction.ready() is not None:
        return None
    require(not extraction.backbone.named, NO_PROBES)
    store, name = extraction.features.store, extraction.backbone.name
    weights = extraction.backbone.file(store, watch)
    about = {
        "backbone": {"name": name, "sha256": sha256(weights) if weights else "random"},
        "preprocessing": Preprocessing().describe(),
        "probes": COUNT,
    }
    file = store / "probes" / f"{name}-{npz.key(about)}.npz"
    if not file.is_file():
        require_writable(file, "features.cache")
        save(file, npz.seal(half({"probe_x": _made(name, weights, watch)}), about))
    with npz.naming(file):
        arrays = npz.read(file)
        npz.check_seal(arrays)
        return probe_features(arrays)


def _made(name: str, weights: Path | None, watch: Watch) -> Array:
    optional("torch")
    from fedsofim.data.arithmetic import Workplace
    from fedsofim.data.backbones import load_backbone, random_backbone
    from fedsofim.data.extraction import probe_features as passed

    network = load_backbone(name, weights) if weights else random_backbone(name, seed=0)
    return passed(Workplace(network), COUNT, watch)
