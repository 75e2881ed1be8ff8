"""The command `features`, and how an extraction shows on the terminal."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsofim.cli.keys import keyed, take
from fedsofim.core.arguments import Parser
from fedsofim.core.errors import require

if TYPE_CHECKING:
    from rich.console import Console

    from fedsofim.data.download import Watch

ABOUT = """Images to a file of features, with the keys of 'fedsofim run':
  fedsofim features dataset=bloodmnist dataset.root=images out=bloodmnist.npz
  fedsofim features dataset=folder dataset.root=my-images backbone=vgg16 backbone.weights=vgg16.pt
Without out they go to the cache, where 'fedsofim run' finds them. Use a file of features with
  fedsofim run dataset=npz dataset.path=bloodmnist.npz"""

EVERY = 5.0  # seconds between lines where there is no terminal


def parser() -> Parser:
    """Its options."""
    return keyed("features", ABOUT)


def main(arguments: Sequence[str]) -> None:
    """Extract features to the file that `out` names, or to the cache, and say where they are."""
    overrides = list(parser().read(arguments).overrides)
    given = take(overrides, "out")
    require(given != "", "out: name one file")
    from fedsofim.cli.terminal import console
    from fedsofim.config.build import build
    from fedsofim.config.compose import compose
    from fedsofim.data.datasets import DatasetConfig
    from fedsofim.data.features import Extraction
    from fedsofim.data.recipe import BackboneConfig, FeaturesConfig

    values, out = compose(overrides), Path(given) if given else None
    extraction = Extraction(
        dataset=build(DatasetConfig, values["dataset"], "dataset"),
        backbone=build(BackboneConfig, values["backbone"], "backbone"),
        features=build(FeaturesConfig, values["features"], "features"),
    )
    with watching(console) as watch:
        if out is not None:
            extraction.write(out, watch)
        file = out or extraction.file(watch)
    size = file.stat().st_size / 1e6
    console.print(f"Features in {file} ({size:.1f} MB)", soft_wrap=True, markup=False)


@contextmanager
def watching(console: "Console") -> Iterator["Watch"]:
    """Show downloads and extractions: a bar on a terminal, otherwise a line now and then."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from fedsofim.data.download import EXTRACTING

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    tasks: dict[str, Any] = {}
    began: dict[str, float] = {}
    told = time.monotonic()
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as bars:  # fmt: skip

        def watch(what: str, done: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            if what not in tasks:
                tasks[what], began[what] = bars.add_task(what), now
            bars.update(tasks[what], completed=done, total=total or None)
            if not console.is_terminal and now - told > EVERY:
                console.print(f"{what}: {done:,} of {total:,}")
                told = now
            if what == EXTRACTING and done == total:  # the rate, for whoever plans a larger set
                rate = total / max(now - began[what], 1e-9)
                console.print(
                    f"{total:,} images in {now - began[what]:.1f} s: {rate:,.0f} a second"
                )

        yield watch
