"""Train, continue and read runs from Python.

>>> rng = np.random.default_rng(0)
>>> y = rng.integers(3, size=3000)
>>> X = np.eye(3)[y] + 0.2 * rng.normal(size=(3000, 3))
>>> parts = X[:2500], y[:2500], X[2500:], y[2500:]
>>> history = run(data=parts, strategy="sofim", clients=5, epsilon=5, rounds=20)
>>> len(history), bool(history.final_accuracy > 0.9), round(history.final_epsilon, 6)
(20, True, 5.0)
>>> history.model.predict(X[:2]).tolist() == y[:2].tolist()
True
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from fedsofim.api.config import Config, Words
from fedsofim.api.data import Labelled, labelled
from fedsofim.api.history import History
from fedsofim.api.model import Model
from fedsofim.config.words import WORDS
from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.data import npz
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir
from fedsofim.runs.evaluation import personal_models
from fedsofim.runs.experiment import Experiment, begin, prepare
from fedsofim.runs.observer import Observer, Text
from fedsofim.strategies.average import model_of


def run(
    config: Config | Mapping[str, Any] | None = None,
    *,
    data: Sequence[Any] | None = None,
    owners: Any = None,
    output: str | Path | None = None,
    progress: bool | Observer | None = None,
    **settings: Unpack[Words],
) -> History:
    """Train privately, in a simulated federation, and return what came of it.

    Nothing is written to disk unless `output` names a directory. A run that was written can be
    continued with `resume` and read with `load`; your records are never copied into it.

    Args:
        config: settings to begin with, see `Config`.
        data: `(X, y)` or `(X, y, X_test, y_test)`, your own arrays: features `(N, F)`, or images
            `(N, C, H, W)` for a network, and labels of any integers or texts. They are divided
            among `clients`. By default the data set that the settings name.
        owners: whose each record of `data` is, `(N,)`; there is then one client for each owner.
        output: a new directory to write the run to.
        progress: whether to tell how it goes; by default where somebody looks on, in a notebook or
            a terminal. An `Observer` is told whatever happens.
        **settings: every key of the command line and the short words, see `Config`:
            `strategy="sofim"`, `epsilon=1`, `clients=20`, `rounds=70`, `seed=0` ...

    Raises:
        ConfigError: a setting or the data are wrong.
        Stopped: Ctrl-C; `output` can be continued.
    """
    extra: dict[str, Any] = {}
    if data is not None:
        require("dataset" not in settings, "data, dataset: give one of them")
        extra = {"dataset": "arrays", **_divided(owners)}
    given = None if data is None else labelled(data, owners)
    if output is not None:
        extra["output.dir"] = Path(output).expanduser().resolve()
    sizes = None if given is None else given.sizes
    whole, seen = Config(config, settings, extra, sizes=sizes), observer_for(progress)
    given = None if given is None else given.held_out(whole["dataset.holdout"])
    return _trained(whole, _ready(whole, given, seen), seen)


def _trained(config: Config, experiment: Experiment, observer: Observer) -> History:
    """Train, into a directory if the config names one."""
    if config.checked.output.dir is not None:
        return load(session.run(config.values, experiment=experiment, observer=observer).path)
    trained = session.train(experiment, begin(experiment), observer=observer)
    theta, own = model_of(trained.state.server), []
    if experiment.config.client.keeps_models:
        own = list(personal_models(experiment, trained.state))
    models = [_model(config, one, experiment.partition) for one in (theta, *own)]
    return History(
        config=config,
        rows=trained.rows,
        summary=trained.summary,
        model=models[0],
        personal=models[1:],
    )


def resume(
    path: str | Path,
    *,
    data: Sequence[Any] | None = None,
    owners: Any = None,
    progress: bool | Observer | None = None,
    **changes: Any,
) -> History:
    """Continue a run that was written, to the same parameters, bit for bit, or extend it.

    Args:
        path: the run's directory.
        data: the same arrays again, for a run that was given arrays: they are not kept.
        owners: the same again, if they were given.
        progress: as for `run`.
        **changes: `rounds`, `epsilon` or `noise_multiplier`, to extend the run. All that was
            released is charged, and the noise of the rounds that remain is chosen from what is left
            of the budget.
    """
    place, seen = RunDir.open(Path(path)), observer_for(progress)
    before = Config.of(place.config())
    experiment = None
    if data is not None:
        name = before["dataset.name"]
        require(name == "arrays", f"data: the run was trained on dataset={name}, not on arrays")
        classes = place.read_json("partition.json").get("classes")
        given = labelled(data, owners, classes).held_out(before["dataset.holdout"])
        experiment = _ready(before, given, seen)
    named = {WORDS.get(name, name): value for name, value in changes.items()}
    return load(session.resume(place.path, named, experiment=experiment, observer=seen).path)


def load(path: str | Path) -> History:
    """Read a run's directory, whether the run was finished or interrupted."""
    place = RunDir.open(Path(path))
    config, about = Config.of(place.config()), place.read_json("partition.json")
    theta, done = place.parameters()
    rows, file = place.metrics(done), place.path / "metrics.jsonl"
    require(len(rows) == done, f"{file}: damaged (it should begin with rounds 1 to {done})")
    finished = (place.path / "summary.json").is_file() and done == config.checked.rounds
    own: list[Array] = []
    if finished and (place.path / "personal.npz").is_file():
        with npz.naming(file := place.path / "personal.npz"):
            own = list(npz.read(file, "theta")["theta"])
    return History(
        config=config,
        rows=rows,
        summary=place.read_json("summary.json") if finished else {},
        model=_model(config, theta, about),
        personal=[_model(config, one, about) for one in own],
        path=place.path,
    )


def _divided(owners: Any) -> dict[str, Any]:
    """The settings that a given division implies."""
    if owners is None:
        return {}
    return {"partition": "natural", "clients": len(np.unique(np.asarray(owners)))}


def _ready(config: Config, given: Labelled | None, seen: Observer) -> Experiment:
    """The run made ready, from arrays or from what the settings name."""
    if given is None:
        return session.ready(config.checked, seen)
    require(
        config.checked.engine.name == "local",
        f"engine={config.checked.engine.name}: data in memory needs engine=local; for another, "
        "write a .npz file and give dataset='npz'",
    )
    experiment = prepare(config.checked, given.dataset)
    about = {**experiment.partition, "classes": given.classes.tolist()}
    return experiment._replace(partition=about)


def _model(config: Config, theta: Array, about: Mapping[str, Any]) -> Model:
    kind = config.checked.model
    classes = about.get("classes")
    if classes is None and not kind.linear:
        classes = range(len(about["counts"][0]))
    return Model(theta, classes, kind, tuple(about["shape"]) if "shape" in about else None)


def observer_for(progress: bool | Observer | None) -> Observer:
    """Who is told: by default a notebook or a terminal, if somebody looks on."""
    if isinstance(progress, Observer):
        return progress
    notebook = _in_notebook()
    if progress is False or (progress is None and not notebook and not sys.stdout.isatty()):
        return Observer()
    if notebook:
        return Text(overwrite=True)
    from fedsofim.cli.terminal import Terminal

    return Terminal()


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this, without importing what is not there."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")
