"""Which settings a run has: those that are named, or the best that is known for its data.

The paper's settings are good on the paper's data. Elsewhere `settings=auto` is the default, where
there is a rule for the strategy; where there is none, a line says so.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from fedsofim.config import auto
from fedsofim.config.build import build, settings_of
from fedsofim.config.parts import GROUPS, find
from fedsofim.core.errors import ConfigError, require
from fedsofim.data.recipe import BackboneConfig
from fedsofim.data.sizes import client_count, count

# The data that the paper's settings were chosen on.
PUBLISHED = ("cifar10", "pathmnist")
MAPS = ("private", "centre", "public")
# Strategies that take no rate and no clip.
RATELESS = ("ridge", "alone")
# What owners are believed to hold until they say what they do.
EACH, WIDTH = 1000, 64


def default_settings(overrides: Sequence[str]) -> tuple[list[str], str]:
    """What to add to overrides that name no settings, and a line that says why it is not `auto`.

    >>> default_settings(["dataset=npz", "strategy=fedgd"])
    (['settings=auto'], '')
    >>> default_settings(["strategy=fedgd"])
    ([], '')
    """
    pairs = (override.lstrip("+~").partition("=") for override in overrides)
    given = {key: value.strip("'\" ") for key, _, value in pairs}
    chosen = given.get("dataset", PUBLISHED[0])
    if {"settings", "experiment"} & given.keys() or chosen in PUBLISHED:
        return [], ""
    strategy = given.get("strategy", "sofim")
    if strategy in RATELESS:
        return [], ""
    if why := _no_rule(strategy, given):
        return [], f"settings=published: {why}; rate and clip are those of other data"
    return ["settings=auto"], ""


def _no_rule(strategy: str, given: Mapping[str, str]) -> str:
    """Why settings cannot follow from public numbers, if they cannot."""
    if strategy not in auto.STRATEGIES:
        return f"settings=auto has no rule for strategy={strategy}"
    if given.get("strategy.direction", "momentum") != "momentum":
        return "settings=auto has no rule for strategy.direction=gradient"
    if given.get("transform", "private") not in MAPS:
        return f"settings=auto maps records, and does not go with transform={given['transform']}"
    if given.get("model", "head") != "head":
        return f"settings=auto is for model=head, not {given['model']}"
    if given.get("privacy.noise_multiplier", "null") not in ("null", ""):
        return "settings=auto reckons with a budget, not with privacy.noise_multiplier"
    return ""


def settle(config: DictConfig, told: auto.Sizes | None, base: Path) -> str:
    """Choose settings from public numbers, and say so in one line.

    Args:
        config: the composed config, which is changed.
        told: how much data there is, where somebody knows.
        base: what relative paths are relative to.
    """
    strategy, get = OmegaConf.select(config, "strategy"), partial(OmegaConf.select, config)
    transform = get("transform")
    require(
        transform.name in MAPS,
        f"settings=auto: is for mapped records; use transform=private, not {transform.name}",
    )
    require(
        get("strategy.direction") in (None, "momentum"),
        "settings=auto: has no rule for strategy.direction=gradient; use momentum",
    )
    require(
        get("privacy.noise_multiplier") is None,
        "settings=auto: reckons with a budget; give privacy.epsilon, not noise_multiplier",
    )
    if "steps" in strategy.get("settings", {}):
        OmegaConf.update(config, "strategy.settings.steps", [1] * 5)
    sizes, doubt = _sizes(config, told, base)
    rounds = int(get("rounds"))
    budget = _budget(config, base)
    steps = {"rounds": rounds, "local_steps": int(get("client.steps") or 1)}
    clip, settings = auto.settings_of(strategy.name, sizes, budget, **steps)
    average = auto.average_of(strategy.name, sizes, budget, **steps)
    OmegaConf.update(config, "settings.clip", clip)
    OmegaConf.update(config, "settings.average", average)
    OmegaConf.update(config, "strategy.settings", settings, merge=True)
    return auto.told(sizes, budget, clip, rounds, settings) + doubt


def _budget(config: DictConfig, base: Path) -> auto.Budget:
    """What is public of the promise, and what the set-up leaves of it."""
    get = partial(OmegaConf.select, config)
    n = int(get("partition.clients") or _named_clients(config, base))
    part = float(get("participation"))
    present = max(1, math.floor(part * n + 0.5))
    threshold = int(get("secagg.threshold") or get("engine.min_clients") or present)
    values: Any = OmegaConf.to_container(config.transform, resolve=True)
    kind = find("transform", values.pop(GROUPS["transform"].key))
    shares = [stage.share for stage in build(kind, values, "transform").stages]
    shares += [float(get("start_share"))] if get("start") == "ridge" else []
    return auto.Budget(
        epsilon=float(get("privacy.epsilon")),
        delta=float(get("privacy.delta")),
        adjacency=get("privacy.adjacency"),
        trust=get("privacy.trust"),
        clients=present,
        share=sum(shares),
        part=present / n,
        sharers=max(1, threshold - int(get("secagg.colluders") or 0)),
    )


def _sizes(config: DictConfig, told: auto.Sizes | None, base: Path) -> tuple[auto.Sizes, str]:
    """The public sizes, as given, as told, or as counted; and what is doubtful about them."""
    names = ("records", "features", "classes")
    given = {name: OmegaConf.select(config, f"settings.{name}") for name in names}
    doubt = ""
    if any(value is None for value in given.values()):
        if told is None:
            told, doubt = _found(config, base)
        held = float(OmegaConf.select(config, "dataset.holdout") or 0)
        known = {**vars(told), "records": told.records - round(held * told.records)}
        given = {name: known[name] if value is None else value for name, value in given.items()}
    return auto.Sizes(**{name: int(value) for name, value in given.items()}), doubt


def _found(config: DictConfig, base: Path) -> tuple[auto.Sizes, str]:
    """How much data there is; where it is not here, that is for its owners to say.

    A run on data that are missing ends when they are loaded, and says what is wrong with them.
    """
    try:
        return auto.Sizes(**_counted(_sections(config, "dataset", "backbone"), str(base))), ""
    except ConfigError:
        clients = int(OmegaConf.select(config, "partition.clients") or 1)
        given = OmegaConf.select(config, "dataset.classes")
        classes = len(given) if isinstance(given, ListConfig) else int(given or 2)
    sizes = auto.Sizes(records=EACH * clients, features=WIDTH, classes=classes)
    return sizes, "; for the time being: how much data there is, is not known yet"


def _named_clients(config: DictConfig, base: Path) -> int:
    """How many clients there are where the data name them; 1 where they are not here."""
    try:
        return _clients_in(_sections(config, "dataset", "partition"), str(base))
    except ConfigError:  # told when the data are loaded
        return 1


def _sections(config: DictConfig, *names: str) -> str:
    return json.dumps({key: OmegaConf.to_container(config[key], resolve=True) for key in names})


@lru_cache(maxsize=8)
def _counted(sections: str, base: str) -> dict[str, int]:
    """Records, features and classes of a data set that a config names."""
    values = json.loads(sections)
    data = _dataset(values["dataset"], Path(base))
    found = count(data, build(BackboneConfig, values["backbone"], "backbone"))
    return dict(zip(("records", "features", "classes"), found, strict=True))


@lru_cache(maxsize=8)
def _clients_in(sections: str, base: str) -> int:
    values = json.loads(sections)
    return client_count(values["partition"], _dataset(values["dataset"], Path(base))) or 1


def _dataset(values: dict[str, Any], base: Path) -> Any:
    """A data set as its config names it, with paths from `base` on."""
    for key in ("path", "root", "schema", "test"):
        if values.get(key):
            values[key] = str(base / Path(str(values[key])).expanduser())
    kind = find("dataset", values["name"])
    if "name" not in settings_of(kind):
        values.pop("name")
    return build(kind, values, "dataset")
