"""Hydra configs, as plain mappings."""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from fedsofim.config import auto
from fedsofim.config.build import build
from fedsofim.config.chosen import settings_for
from fedsofim.config.overrides import errors_in_one_line
from fedsofim.config.parts import offer
from fedsofim.core.errors import require
from fedsofim.core.shipped import shipped
from fedsofim.data.datasets import DatasetConfig, load
from fedsofim.data.features import Extraction
from fedsofim.data.recipe import BackboneConfig, FeaturesConfig

CONF = shipped("conf")
# The budgets for which settings are given.
EPSILONS = (0.5, 1.0, 5.0, 10.0)


def at_epsilon(values: Sequence[Any] | None, *, _root_: DictConfig) -> Any:
    """Of the settings for `EPSILONS`, the one nearest to the run's budget, as a ratio.

    One more than that is for runs without a budget.
    """
    if values is None:
        return None  # a bad direction; the config's own check says so
    epsilon = OmegaConf.select(_root_, "privacy.epsilon")
    try:
        wanted = math.log(min(max(float(epsilon), EPSILONS[0]), EPSILONS[-1]))
    except (TypeError, ValueError):
        return values[-1]  # a bad budget; the config's own check says so
    if float(epsilon) == math.inf:
        return values[-1]
    distances = [abs(math.log(e) - wanted) for e in EPSILONS]
    return values[distances.index(min(distances))]


def known_statistics(*, _root_: DictConfig) -> str | None:
    """The weights whose public statistics fit the run's features; `None` where that is not known.

    A file of the user's own may hold any features.
    """
    own = OmegaConf.select(_root_, "dataset.name") in ("npz", "arrays", "owners")
    given = OmegaConf.select(_root_, "dataset.path") is not None
    weights = OmegaConf.select(_root_, "backbone.weights")
    backbone = OmegaConf.select(_root_, "backbone.name")
    return None if own or given or weights != "own" else f"{backbone}-cifar100"


OmegaConf.register_new_resolver("public_statistics", known_statistics, replace=True)
OmegaConf.register_new_resolver("at_epsilon", at_epsilon, replace=True)


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed config with everything resolved, as dicts, lists and numbers."""
    if OmegaConf.select(config, "settings.name") == "tuned":
        OmegaConf.update(config, "strategy.settings", _tuned(config), merge=True)
    note = _auto(config) if OmegaConf.select(config, "settings.name") == "auto" else ""
    values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    if note:
        values["note"] = note
    for choice in ("settings", "experiment"):  # they chose other values, and hold none
        values.pop(choice, None)
    if isinstance(values.get("strategy"), dict):
        values["strategy"].pop("settings", None)
    return values


def _tuned(config: DictConfig) -> dict[str, Any]:
    keys = {"dataset": ("name", "path", "root"), "backbone": ("name",)}
    data = {
        section: {name: OmegaConf.select(config, f"{section}.{name}") for name in names}
        for section, names in keys.items()
    }
    return settings_for(data, OmegaConf.select(config, "strategy.name"))


def _auto(config: DictConfig) -> str:
    """Choose settings from public numbers, and say so in one line."""
    strategy, get = OmegaConf.select(config, "strategy"), partial(OmegaConf.select, config)
    transform = get("transform")
    require(
        transform.name in ("private", "centre", "public"),
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
    sizes, rounds = _sizes(config), int(get("rounds"))
    n, part = int(get("partition.clients") or 1), float(get("participation"))
    present = max(1, math.floor(part * n + 0.5))
    budget = auto.Budget(
        epsilon=float(get("privacy.epsilon")),
        delta=float(get("privacy.delta")),
        adjacency=get("privacy.adjacency"),
        trust=get("privacy.trust"),
        clients=present,
        share=sum(float(transform.get(f"{name}_share", 0)) for name in ("mean", "covariance")),
        part=present / n,
    )
    clip, settings = auto.settings_of(
        strategy.name, sizes, budget, rounds=rounds, local_steps=int(get("client.steps") or 1)
    )
    OmegaConf.update(config, "settings.clip", clip)
    OmegaConf.update(config, "strategy.settings", settings, merge=True)
    return auto.told(sizes, budget, clip, rounds, settings)


def _sizes(config: DictConfig) -> auto.Sizes:
    """The public sizes: as given, or those of the data."""
    names = ("records", "features", "classes")
    given = {name: OmegaConf.select(config, f"settings.{name}") for name in names}
    if any(value is None for value in given.values()):
        sections = ("dataset", "backbone", "features")
        source = {key: OmegaConf.to_container(config[key], resolve=True) for key in sections}
        own = ":" in str(source["dataset"]["name"])  # type: ignore[index,call-overload]
        require(
            not own and source["dataset"]["name"] not in ("owners", "arrays"),  # type: ignore[index,call-overload]
            "settings=auto: how much data there is, is not known here; give settings.records, "
            "settings.features and settings.classes",
        )
        found = dict(zip(names, _counted(json.dumps(source)), strict=True))
        given = {name: found[name] if value is None else value for name, value in given.items()}
    return auto.Sizes(**{name: int(value) for name, value in given.items()})


@lru_cache(maxsize=8)
def _counted(source: str) -> tuple[int, int, int]:
    """Records, features and classes of a data set."""
    values = json.loads(source)
    dataset = build(DatasetConfig, values["dataset"], "dataset")
    backbone = build(BackboneConfig, values["backbone"], "backbone")
    features = build(FeaturesConfig, values["features"], "features")
    extraction = Extraction(dataset=dataset, backbone=backbone, features=features)
    data = load(dataset, extraction.file())
    return len(data.train_y), data.train_x.shape[1], data.classes


# What names a file or a folder to read; a word such as backbone.weights=own does so if it exists.
PATHS = {
    "dataset": ("path", "root"),
    "features": ("cache",),
    "backbone": ("weights",),
    "transform": ("probes",),
}


def make_absolute(values: dict[str, Any], base: Path) -> None:
    """Let a config name its files so that they are found from anywhere.

    Args:
        values: the config, which is changed.
        base: what relative paths are relative to.
    """
    for section, keys in PATHS.items():
        group = values.get(section) or {}
        for key in keys:
            if not group.get(key):
                continue
            path = (base / Path(str(group[key])).expanduser()).resolve()
            if section not in ("backbone", "transform") or path.is_file():
                group[key] = str(path)


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The config that these Hydra overrides give; what is wrong with them is one line."""
    with errors_in_one_line(overrides):
        return plain(_compose(overrides))


def shown(overrides: Sequence[str], *, resolve: bool) -> str:
    """The config as YAML: what a run will use or, not resolved, how its values come about."""
    if resolve:
        return yaml.safe_dump(compose(overrides), sort_keys=False)
    with errors_in_one_line(overrides):
        return OmegaConf.to_yaml(_compose(overrides))


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """All combinations that overrides with several values stand for, as in Hydra's multirun.

    >>> expand(["strategy=sofim", "seed=0,1"])
    [['strategy=sofim', 'seed=0'], ['strategy=sofim', 'seed=1']]
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    choices = []
    with errors_in_one_line(overrides):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    for override in parsed:
        key = override.get_key_element()
        if override.is_sweep_override():
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([override.input_line or ""])
    return [list(combination) for combination in itertools.product(*choices)]


def compose_many(combinations: Sequence[Sequence[str]]) -> Iterator[dict[str, Any]]:
    """The configs of many combinations of overrides.

    Composing takes Hydra a while, so it is done once for each choice of groups; single values are
    then set, which gives the same since nothing is resolved before.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()
    composed: dict[Any, DictConfig] = {}
    for overrides in combinations:
        with errors_in_one_line(overrides):
            values = {
                o.key_or_group: o.value()
                for o in parser.parse_overrides(list(overrides))
                if "." in o.key_or_group or not (CONF / o.key_or_group).is_dir()
            }
            groups = tuple(o for o in overrides if o.partition("=")[0] not in values)
            key = (groups, tuple(values))
            if key not in composed:  # with the values, so that Hydra checks their names
                composed[key] = _compose(overrides)
            config = deepcopy(composed[key])
            for name, value in values.items():
                OmegaConf.update(config, name, value)
            ready = plain(config)
        yield ready


def _compose(overrides: Sequence[str]) -> DictConfig:
    import hydra

    offer(overrides)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", list(overrides))
