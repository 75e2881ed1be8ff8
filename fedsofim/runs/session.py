"""Training a run to its end, into a directory or not, so that nothing is lost.

A session keeps no global state, prints nothing and never ends the program: an `Observer` hears how
it goes, mistakes are a `ConfigError`, and a requested stop is `Stopped`.
"""

import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array
from fedsofim.core.errors import Stopped, require
from fedsofim.core.files import alone, remove_drafts
from fedsofim.core.threads import one_thread_a_product
from fedsofim.data.own import Data
from fedsofim.data.partition import table
from fedsofim.engines import ENGINES, Run
from fedsofim.reports.run_page import heat_map_of
from fedsofim.runs.directory import THEORY, Row, RunDir, keeping
from fedsofim.runs.evaluation import final_models, measure
from fedsofim.runs.experiment import Experiment, RunState, begin, fetch, prepare
from fedsofim.runs.extension import changed, extended, with_noise
from fedsofim.runs.observer import Observer
from fedsofim.runs.record import require_terms, terms_of
from fedsofim.runs.results import summarise, write_results
from fedsofim.runs.scoring import score
from fedsofim.runs.stopping import stop_requests
from fedsofim.runs.theorems import conclude
from fedsofim.runs.theory import Theory
from fedsofim.runs.tracking import Tracked, trackers


class Trained(NamedTuple):
    """A finished run.

    Attributes:
        state: after the last round.
        rows: the metrics, one row a round.
        summary: the run in a few numbers.
    """

    state: RunState
    rows: list[Row]
    summary: Row


def run(
    values: Mapping[str, Any],
    directory: Path | None = None,
    *,
    command: str | None = None,
    experiment: Experiment | None = None,
    engine: Run | None = None,
    observer: Observer | None = None,
) -> RunDir:
    """Start a run from its plain config, and train it into a directory.

    Args:
        values: the config.
        directory: where the run is written; by default where the config says.
        command: what would start the same run again.
        experiment: the run made ready, when it is not to be prepared from the config's data.
        engine: what moves the arrays; by default the one that the config names.
        observer: who hears how it goes; by default nobody.

    Raises:
        Stopped: Ctrl-C or SIGTERM came; the run can be continued.
    """
    observer = observer or Observer()
    experiment = experiment or ready(parse(values), observer, engine)
    config, state = experiment.config, begin(experiment)
    if config.track:
        trackers(config.track)  # a mistake in their names comes before the directory
    chosen = Path(config.output.dir) if config.output.dir else None
    path = directory or chosen or _unused(Path(config.output.root), config.name)
    place = RunDir.create(path, values, experiment.partition, state)
    with keeping(place), alone(place.path):
        if command:
            place.write("command.txt", f"{command}\n".encode())
        train(experiment, state, place, engine, observer)
    return place


def resume(
    path: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    experiment: Experiment | None = None,
    engine: Run | None = None,
    observer: Observer | None = None,
) -> RunDir:
    """Continue a run: to the result that it would have had, or beyond.

    Args:
        path: the run's directory.
        changes: new values, by dotted name, of `rounds` and the budget, see `extended`.
        experiment: as for `run`.
        engine: as for `run`.
        observer: as for `run`.
    """
    place, observer = RunDir.open(path), observer or Observer()
    with keeping(place), alone(path):
        remove_drafts(path, "*")
        _resume(place, changes, experiment, engine, observer)
    return place


def _resume(
    place: RunDir,
    changes: Mapping[str, Any] | None,
    experiment: Experiment | None,
    engine: Run | None,
    observer: Observer,
) -> None:
    config = _config_of(place, changes)
    given = experiment and experiment._replace(config=config, plan=config.plan())
    experiment = given or ready(config, observer, engine)
    require(
        _same_data(place.read_json("partition.json"), experiment.partition),
        f"dataset={config.dataset.name}: the data, or its division, has changed since "
        f"{place.path} was started",
    )
    state, seen = _found(place, experiment)
    if changes:
        unfinished = f"{place.path}: its set-up is not finished; resume it first without changes"
        require(state.server.t >= 0, unfinished)  # its noise was made for the budget as it was
        if state.server.t < seen and config.privacy.noise == "seeded":
            # These rounds were seen: they are repeated with the noise they had, and then charged.
            state, _ = _train(experiment, state, place, engine, Observer(), seen)
        experiment, state = extended(place, experiment, state, changes)
    train(experiment, state, place, engine, observer)


def _same_data(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a run goes on with what it began with; names of classes may have come later."""
    return dict(then) == {key: now[key] for key in now if key != "classes" or key in then}


def _config_of(place: RunDir, changes: Mapping[str, Any] | None) -> Config:
    """The config that a run was left with; one that was edited since is refused."""
    values, record = place.config(), place.record()
    if changes and terms_of(changed(values, changes)) == record.terms:
        values = changed(values, changes)  # a crash came before the config of this extension
        place.write_config(values)
    require_terms(values, record.terms, str(place.path / "config.yaml"))
    return with_noise(values, record.noise_multiplier)


def _found(place: RunDir, experiment: Experiment) -> tuple[RunState, int]:
    """The state that was saved, and how many rounds were seen; those after it will be repeated."""
    state, config = place.restore(begin(experiment)), experiment.config
    seen = min(len(place.metrics()), config.rounds)
    done = max(0, state.server.t)
    if done < seen:
        record = state.record.repeating(config, experiment.plan, seen)
        state = state._replace(record=record)
        place.checkpoint(state)  # before the rows that tell of the lost rounds go
    place.rewind(done)
    return state, seen


def ready(config: Config, observer: Observer, engine: Run | None = None) -> Experiment:
    """The run made ready; what must be fetched or extracted first, the observer hears of."""
    require(
        engine is not None or config.engine.name in ENGINES,
        "engine=flower: is what 'flwr run' uses; start with flwr run . --run-config "
        "'overrides=\"...\"', continue with flwr run . --run-config 'resume=\"DIR\"', "
        "or choose engine=ray",
    )
    if not isinstance(config.dataset, Data):
        try:
            fetch(config, observer.watch)
        finally:
            observer.close()
    return prepare(config)


def _unused(root: Path, name: str) -> Path:
    """`root/<date>/<name>`, or with a number behind it if that exists."""
    day = root / date.today().isoformat()
    number = 1
    while (path := day / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path


@one_thread_a_product()
def train(
    experiment: Experiment,
    state: RunState,
    place: RunDir | None = None,
    engine: Run | None = None,
    observer: Observer | None = None,
) -> Trained:
    """Train from a state to the last round, into `place` if there is one.

    Raises:
        Stopped: Ctrl-C or SIGTERM came; the run stopped after the round that was under way.
    """
    config, observer = experiment.config, observer or Observer()
    require(
        place is not None or not config.output.theory,
        "output.theory=true: is written to the run's directory; name one",
    )
    if config.track:
        require(place is not None, f"track={config.track}: is for runs with a directory; name one")
        assert place is not None
        observer = Tracked(observer, trackers(config.track), place.path)
    promise = state.record.epsilon(config, experiment.plan, config.rounds)
    if place and config.output.counts and "counts" in experiment.partition:
        place.write("partition.svg", heat_map_of(experiment.partition).encode())
        place.write("partition.csv", table(experiment.partition).encode())
    try:
        observer.announce(experiment, promise, max(0, state.server.t))
        state, rows = _train(experiment, state, place, engine, observer, config.rounds)
        summary = finish(experiment, state, place, rows)
        observer.result(summary, rows, place.path if place else None)
    finally:
        observer.close()
    return Trained(state, rows, summary)


def finish(experiment: Experiment, state: RunState, place: RunDir | None, rows: list[Row]) -> Row:
    """The summary of a run, written with all else that a finished run leaves."""
    require(bool(rows), "no round was completed")
    final = score(experiment, final_models(experiment, state))
    summary = summarise(experiment, state, rows[-1], final)
    if place:
        if experiment.config.output.theory:
            told = conclude(Theory(experiment), place.rows(THEORY), state.server)
            place.write_json("theory.json", told)
        write_results(experiment, state, place, summary, final)
    return summary


def _train(
    experiment: Experiment,
    state: RunState,
    place: RunDir | None,
    engine: Run | None,
    observer: Observer,
    until: int,
) -> tuple[RunState, list[Row]]:
    """Train to round `until`, saving every so often and at the end, whatever happens."""
    config, plan = experiment.config, experiment.plan
    rows = place.metrics() if place else []
    began = time.perf_counter() - (rows[-1]["seconds"] if rows else 0.0)
    latest = saved = state
    # Parameters that diverge become infinite: the metrics and the closing lines tell.
    quietly = np.errstate(over="ignore", invalid="ignore")
    with quietly, stop_requests() as stop:
        theory = Theory(experiment) if place and config.output.theory else None

        def on_round(now: RunState, G: Array | None, charged: float = 0.0, **notes: Any) -> bool:
            nonlocal latest, saved
            t, seconds = now.server.t, time.perf_counter() - began
            now = now._replace(record=latest.record.after(config, plan, t, charged))
            if t > 0:  # else it is a stage before the first round, which shows no model
                rows.append(measure(experiment, now, G, seconds) | notes)
                if place:
                    place.append(rows[-1])
                if place and theory and G is not None:
                    place.append(theory.row(latest.server, now.server, G), THEORY)
                observer.round(rows[-1])
            latest = now
            if place and (t <= 0 or stop.requested or t % experiment.checkpoint_every == 0):
                place.checkpoint(now)
                saved = now
            return stop.requested or t >= until

        try:
            if state.server.t < until:
                (engine or ENGINES[config.engine.name])(experiment, state, on_round)
        finally:
            if place and latest is not saved:
                place.checkpoint(latest)
    if stop.requested and latest.server.t < config.rounds:
        raise _stopped(max(0, latest.server.t), config.rounds, place.path if place else None)
    return latest, rows


def _stopped(done: int, rounds: int, path: Path | None) -> Stopped:
    how = f"Continue with: fedsofim resume {path}" if path else "It was not written."
    return Stopped(f"Stopped after round {done} of {rounds}. {how}", path)
