"""`fedsofim features`: images to a file of features."""

from collections.abc import Sequence
from pathlib import Path

from fedsofim.cli.keys import keyed, take
from fedsofim.core.arguments import Parser
from fedsofim.core.errors import require

ABOUT = """Images to a file of features, with the keys of 'fedsofim run':
  fedsofim features dataset=bloodmnist dataset.root=images out=bloodmnist.npz
  fedsofim features dataset=folder dataset.root=my-images backbone=vgg16 backbone.weights=vgg16.pt
A table becomes features by its schema, for an owner's client:
  fedsofim features dataset=table dataset.path=x.csv dataset.share=0 out=x.npz
Without out they go to the cache, where 'fedsofim run' finds them. Use a file of features with
  fedsofim run dataset=npz dataset.path=bloodmnist.npz"""


def parser() -> Parser:
    """Its options."""
    return keyed("features", ABOUT)


def main(arguments: Sequence[str]) -> None:
    """Extract features to the file that `out` names, or to the cache, and say where they are."""
    overrides = list(parser().read(arguments).overrides)
    given = take(overrides, "out")
    require(given != "", "out: name one file")
    from fedsofim import __version__
    from fedsofim.cli.terminal import console, watching
    from fedsofim.config.build import build, settings_of
    from fedsofim.config.compose import compose
    from fedsofim.config.parts import find
    from fedsofim.data import npz
    from fedsofim.data.features import Extraction, require_new, save
    from fedsofim.data.own import Data
    from fedsofim.data.recipe import BackboneConfig, FeaturesConfig
    from fedsofim.data.records import checked

    values, out = compose(overrides), Path(given) if given else None
    kind = find("dataset", values["dataset"]["name"])
    if issubclass(kind, Data):
        require(out is not None, "out: name a file for the features of a table")
        assert out is not None
        require_new(out)
        named = {k: v for k, v in values["dataset"].items() if k in settings_of(kind)}
        made = build(kind, named, "dataset")
        arrays = dict(made.arrays())
        checked(arrays, tested=False)
        save(out, npz.seal(arrays, {"made_by": f"fedsofim {__version__}"}))
        return print(f"Features in {out}")
    extraction = Extraction(
        dataset=build(kind, values["dataset"], "dataset"),
        backbone=build(BackboneConfig, values["backbone"], "backbone"),
        features=build(FeaturesConfig, values["features"], "features"),
    )
    screen = console()
    with watching(screen) as watch:
        if out is not None:
            extraction.write(out, watch)
        file = out or extraction.file(watch, scored=False)
    size = file.stat().st_size / 1e6
    screen.print(f"Features in {file} ({size:.1f} MB)", soft_wrap=True, markup=False)
