"""Flower's entry point for the server: `flwr run` calls `main`.

    flwr run . --run-config 'strategy="fedgd" epsilon=1.0'
    flwr run . --run-config 'overrides="strategy=fedgd strategy.lr=0.3"'
    flwr run . --run-config 'resume="outputs/2026-01-31/sofim-cifar10-eps10-seed0"'

Relative paths are taken from the project's directory: Flower runs a copy of the code, from a
directory that depends on who started its daemon.
"""

import secrets
import shlex
import sys
from logging import ERROR
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from fedsofim.config.auto import Sizes
from fedsofim.config.compose import compose, make_absolute
from fedsofim.config.schema import Config, parse
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.family import end_with_parent
from fedsofim.core.shipped import editable_root
from fedsofim.data.own import Data
from fedsofim.engines.flower import flower_engine
from fedsofim.federation import deployed
from fedsofim.federation.presence import STATUS, SeenRoster
from fedsofim.federation.roster import Roster
from fedsofim.federation.run_config import overrides_of
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir
from fedsofim.runs.observer import Text

end_with_parent()
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train over Flower's grid into a run directory."""
    try:
        given = context.run_config
        serve(grid, shlex.join(overrides_of(given)), resume=str(given.get("resume", "")))
    except ConfigError as error:
        log(ERROR, "fedsofim: %s", error)
        sys.tracebacklimit = 0  # the line above says it all, and it is the last that is said
        raise


def serve(grid: Grid, overrides: str = "", resume: str = "") -> RunDir:
    """Start the run that the overrides describe, or continue one.

    Args:
        grid: where the clients are.
        overrides: Hydra overrides, separated by spaces.
        resume: the directory of an interrupted run.
    """
    path = _path(resume) if resume else None
    values = RunDir.open(path).config() if path else _compose(overrides)
    config = parse(values)
    record = RunDir(path).read_json("partition.json") if path else {}
    roster = _roster(config, record, path)
    wait, clients = config.engine.wait, config.partition.clients
    _require_nodes(roster, grid, wait, roster.wait(grid, 1, wait))
    if not roster.deployed:
        engine = flower_engine(grid)
        if path:
            return session.resume(path, engine=engine, observer=Text())
        return session.run(values, engine=engine, observer=Text())
    test, classes = deployed.load_test_set(config)
    roster.features = None if test is None else test.x.shape[0] - 1
    roster.classes, roster.names = classes.count, "|".join(classes.names) or roster.names
    least = config.sharing.threshold if config.sharing else clients
    enough = config.engine.min_clients or least
    came = roster.wait(grid, enough if path else clients, wait, enough=enough)
    _require_nodes(roster, grid, wait, came)
    if not path:
        values = _compose(overrides, _sizes(roster))
        config = parse(values)
        roster.job = config.text  # what owners agreed to, with settings for what they hold
    experiment = deployed.prepare(config, test, roster, record)
    engine = flower_engine(grid, roster)
    if path:
        return session.resume(path, experiment=experiment, engine=engine, observer=Text())
    return session.run(values, experiment=experiment, engine=engine, observer=Text())


def _roster(config: Config, record: dict[str, Any], path: Path | None) -> Roster:
    """Who is to be met; a run that is continued holds owners to what they said at first."""
    named = None if isinstance(config.dataset, Data) else config.dataset.agreed
    own = path or (Path(config.output.dir) if config.output.dir else None)
    return SeenRoster(
        (own.parent if own else Path(config.output.root)) / STATUS,
        clients=config.partition.clients,
        job=config.text,
        names=record.get("classes") or (named.names if named else ()),
        run=record.get("run") or secrets.token_hex(16),
        owners_only=config.dataset.name == "owners",
        sizes={i: size for i, size in enumerate(record.get("sizes", [])) if size},
        max_records=config.engine.max_records,
        max_features=config.engine.max_features,
        at_once=config.engine.at_once,
    )


def _require_nodes(roster: Roster, grid: Grid, wait: float, came: bool) -> None:
    if not came:
        raise ConfigError(f"waited {wait:g} s in vain for {roster.missing(grid)}")


def _sizes(roster: Roster) -> Sizes:
    """How much data the owners say they have, for settings that follow from it."""
    features, classes = roster.shape()
    return Sizes(records=sum(roster.sizes.values()), features=features, classes=classes)


def _compose(overrides: str, sizes: Sizes | None = None) -> dict[str, Any]:
    base = editable_root() or Path.cwd()
    values = compose(["engine=flower", *shlex.split(overrides)], sizes, base)
    require(values["engine"]["name"] == "flower", "engine: 'flwr run' chooses it")
    make_absolute(values, base)
    output = values["output"]
    output |= {key: str(_path(output[key])) for key in ("root", "dir") if output[key]}
    return values


def _path(given: str) -> Path:
    return ((editable_root() or Path.cwd()) / Path(given).expanduser()).resolve()
