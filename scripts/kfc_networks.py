"""DP-KFC on networks: DP-SGD, DP-Adam and KFC with four kinds of factors; docs/kfc-networks.md.

python scripts/kfc_networks.py --images cifar10.npz --public cifar100.npz [--full]

The two files hold images in MedMNIST's layout. Every arm has the same number of tries, on held-out
training records, of a rate and a clip. Each finished run is kept in --store at once, so that an
interrupted study continues; --page writes the page from what is there. Without --full, images have
16 x 16 pixels, and records and rounds are few: about 7 minutes of a core. With it, whole images,
all records, 100 rounds, and a choice for every budget: days.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kfc_networks_page import write

from fedsofim.config.compose import compose_many
from fedsofim.config.schema import parse
from fedsofim.core.arrays import Array
from fedsofim.data.texts import Texts
from fedsofim.studies.results import Results, curve_of

ROOT = Path(__file__).resolve().parent.parent
EPSILONS, SEEDS, CLIENTS = (1, 3, 8), (0, 1, 2), (1, 10)
TUNING = ("dataset.holdout=0.2", "seed=100")
TOKENS, SHIFTED = Texts(), Texts(language=1)
TEXTS = 2.0
DAMPING = 0.1  # of KFC, over the largest eigenvalue; scripts/kfc_forms.py tried others


class Size(NamedTuple):
    """How large the study is.

    Attributes:
        side: pixels of an image's side, for the MLP.
        cnn: the same for the CNN.
        records: for training.
        tests: for testing.
        rounds: of each run.
        tuned: the budgets that settings are chosen at, with one client.
        clips: to choose from.
        steps: to choose from; the rate is this over the clip, and on texts `TEXTS` times as much.
        adam: rates to choose from, for DP-Adam.
    """

    side: int
    cnn: int
    records: int
    tests: int
    rounds: int
    tuned: tuple[float, ...]
    clips: tuple[float, ...]
    steps: tuple[float, ...]
    adam: tuple[float, ...]

    def chosen_at(self, clients: int, epsilon: float) -> float:
        """The budget whose settings a run takes: that with the nearest noise.

        Each of ten clients adds its own noise, so the noise of their mean is the root of ten times
        as large.
        """
        noise = clients**0.5 / epsilon
        return min(self.tuned, key=lambda e: abs(np.log(noise * e)))


SMALL = Size(16, 8, 5000, 2000, 10, (1, 3), (1.0, 0.3), (1.5, 4.5, 13.5), (0.003, 0.01, 0.03))
FULL = Size(
    32,
    32,
    50_000,
    10_000,
    100,
    (0.3, 1, 3, 8),
    (1.0, 0.1, 0.3, 3.0),
    (0.25, 0.5, 1.0, 2.0, 4.0),
    (0.001, 0.003, 0.01, 0.03, 0.1),
)


class Place(NamedTuple):
    """Where the study's files are."""

    store: Path
    size: Size

    def file(self, name: str, side: int = 0) -> Path:
        """One of the data files that it makes; that of images of this side."""
        return self.store / f"{name}-{side}-{self.size.records}.npz"


def models(place: Place) -> dict[str, tuple[str, ...]]:
    """Each network with its data."""
    mlp, cnn = (
        ("dataset=npz", f"dataset.path={place.file('images', side)}", "dataset.classes=10")
        for side in (place.size.side, place.size.cnn)
    )
    texts = ("dataset=npz", f"dataset.path={place.file('texts')}")
    blocks, batch = (
        (2, "model.microbatch=512") if place.size == SMALL else (3, "model.microbatch=128")
    )
    return {
        "MLP": (*mlp, "model=mlp", "model.width=64", batch),
        "text": (*texts, "model=text", f"model.vocabulary={TOKENS.vocabulary}", "model.width=16"),
        "CNN": (*cnn, "model=cnn", "model.width=8", f"model.blocks={blocks}", batch),
    }


ARMS = {
    "DP-SGD": "strategy=fedgd",
    "DP-Adam": "strategy=fedadam strategy.beta1=0.9 strategy.beta2=0.99 strategy.tau=1e-6",
    "KFC, white noise": "strategy=fedgd transform=kfc transform.noise=white",
    "KFC, pink noise": "strategy=fedgd transform=kfc",
    "KFC, token noise": "strategy=fedgd transform=kfc",
    "KFC, public data": "strategy=fedgd transform=kfc transform.probes={public}",
    "KFC, private data (not private)": "strategy=fedgd transform=oracle "
    "transform.i_know_this_is_not_private=true",
}


def arms(model: str) -> list[str]:
    """The arms of a network: images have noise in two colours, texts have random tokens."""
    other = ("white", "pink") if model == "text" else ("token",)
    return [name for name in ARMS if not any(word in name for word in other)]


class Run(NamedTuple):
    """One run."""

    model: str
    arm: str
    clients: int
    epsilon: float
    rate: float
    clip: float
    extra: tuple[str, ...]

    def overrides(self, place: Place) -> list[str]:
        """Its config."""
        side = place.size.cnn if self.model == "CNN" else place.size.side
        text = self.model == "text"
        public = place.file("public-texts") if text else place.file("public-images", side)
        arm = ARMS[self.arm].format(public=public).split()
        if "KFC" in self.arm:
            arm += ["transform.count=512", "transform.normalise=network"]
            arm += [f"transform.damping={DAMPING}"]
        return [
            *models(place)[self.model],
            *arm,
            "partition=iid",
            f"partition.clients={self.clients}",
            "aggregation=size",
            f"rounds={place.size.rounds}",
            f"privacy.epsilon={self.epsilon}",
            f"privacy.clip={self.clip:g}",
            f"strategy.lr={self.rate:g}",
            *self.extra,
        ]


def grid(size: Size, model: str, arm: str, epsilon: float) -> list[Run]:
    """What an arm chooses from."""
    more = TEXTS if model == "text" else 1
    return [
        Run(model, arm, 1, epsilon, rate, clip, TUNING)
        for clip in size.clips
        for rate in (size.adam if "Adam" in arm else [more * s / clip for s in size.steps])
    ]


class Study:
    """The study: what is to be run, and what is there already."""

    def __init__(self, place: Place) -> None:
        self.place, self.results = place, Results(place.store / "runs.jsonl")
        self.curves: dict[Run, list[dict[str, Any]]] = {}

    def run(self, runs: Sequence[Run], jobs: int) -> None:
        """Run what is not there yet, and read all of it."""
        configs = self._configs(runs)
        rows = self.results.run(
            configs, lambda _, result: curve_of(result), every=2, jobs=jobs, show=_show
        )
        self.curves |= {run: row["curve"] for run, row in zip(runs, rows, strict=True)}

    def read(self, runs: Sequence[Run]) -> None:
        """Read what is there."""
        for run, config in zip(runs, self._configs(runs), strict=True):
            row = self.results.get(config.text)
            if row is not None:
                self.curves[run] = row["curve"]

    def _configs(self, runs: Sequence[Run]) -> list[Any]:
        return [parse(v) for v in compose_many([run.overrides(self.place) for run in runs])]

    def accuracy(self, run: Run) -> float:
        """After the last round, in percent; NaN if it is not there."""
        curve = self.curves.get(run)
        last = curve[-1]["accuracy"] if curve else None
        return float("nan") if last is None else 100 * last

    def grids(self, model: str) -> list[Run]:
        """All runs that settings are chosen by."""
        size = self.place.size
        return [run for e in size.tuned for arm in arms(model) for run in grid(size, model, arm, e)]

    def best(self, model: str, arm: str, epsilon: float) -> Run | None:
        """The settings that were chosen, if all of the grid is there."""
        tried = grid(self.place.size, model, arm, epsilon)
        if not all(run in self.curves for run in tried):
            return None
        return max(tried, key=lambda run: np.nan_to_num(self.accuracy(run)))

    def finals(self, model: str, seed: int) -> Iterator[Run]:
        """The runs of the table with this seed, as far as their settings are chosen."""
        for clients in CLIENTS:
            for epsilon in EPSILONS:
                at = self.place.size.chosen_at(clients, epsilon)
                for arm in arms(model):
                    best = self.best(model, arm, at)
                    if best is not None:
                        own = (f"seed={seed}",)
                        yield best._replace(clients=clients, epsilon=epsilon, extra=own)


def _show(done: int, total: int) -> None:
    print(f"\r{done} of {total} runs", end="" if done < total else "\n", flush=True)


def make_data(place: Place, images: Path, public: Path) -> None:
    """Write the study's data: smaller images, fewer of them, and made-up texts."""
    size = place.size
    place.store.mkdir(parents=True, exist_ok=True)
    files = [
        (place.file(name, side), source, side)
        for name, source in (("images", images), ("public-images", public))
        for side in {size.side, size.cnn}
    ]
    for file, source, side in files:
        if not file.is_file():
            with np.load(source) as arrays:
                parts = {
                    f"{split}_{what}": _shrunk(arrays[f"{split}_{what}"][:count], side)
                    for split, count in (("train", size.records), ("test", size.tests))
                    for what in ("images", "labels")
                }
            np.savez(file, **parts)
    for seed, (name, language) in enumerate((("texts", TOKENS), ("public-texts", SHIFTED))):
        if not place.file(name).is_file():
            rng = np.random.default_rng(seed)
            x, y = language.draw(rng, size.records)
            test_x, test_y = language.draw(rng, size.tests)
            splits = {"train_x": x, "train_y": y, "test_x": test_x, "test_y": test_y}
            np.savez(place.file(name), **splits, probe_x=x[:4096])


def _shrunk(array: Array, side: int) -> Array:
    """Images of fewer pixels, each the mean of those it stands for; labels as they are."""
    if array.ndim < 4:
        return array
    n, old, _, channels = array.shape
    k = old // side
    means = array[:, : side * k, : side * k].reshape(n, side, k, side, k, channels).mean((2, 4))
    return np.asarray(means.round().astype(np.uint8))


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, help=".npz of the private images")
    parser.add_argument("--public", type=Path, help=".npz of public images")
    parser.add_argument("--full", action="store_true", help="days, not minutes")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--models", default="MLP,CNN,text")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--store", type=Path, default=Path("outputs/kfc-networks"))
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    a = parser.parse_args()
    study, names = Study(Place(a.store, FULL if a.full else SMALL)), a.models.split(",")
    if not a.page:
        if a.images is None or a.public is None:
            parser.error("--images and --public: name two .npz files of images")
        make_data(study.place, a.images, a.public)
        for model in names:
            study.run(study.grids(model), a.jobs)
            for seed in SEEDS:
                study.run(list(study.finals(model, seed)), a.jobs)
    for model in models(study.place):
        study.read(study.grids(model))
        study.read([run for seed in SEEDS for run in study.finals(model, seed)])
    write(study, a.docs)


if __name__ == "__main__":
    main()
