"""Hydra configs, as plain mappings."""

import itertools
import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from fedsofim.config.auto import Sizes
from fedsofim.config.chosen import settings_for
from fedsofim.config.overrides import errors_in_one_line, listed
from fedsofim.config.parts import offer
from fedsofim.config.settle import default_settings, settle
from fedsofim.core.shipped import shipped
from fedsofim.data.classes import Classes
from fedsofim.data.datasets import CIFAR, MEDMNIST

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

    A file or code of the user's own may hold any features.
    """
    own = OmegaConf.select(_root_, "dataset.name") not in (*CIFAR, *MEDMNIST, "folder")
    given = OmegaConf.select(_root_, "dataset.path") is not None
    weights = OmegaConf.select(_root_, "backbone.weights")
    backbone = OmegaConf.select(_root_, "backbone.name")
    others = ":" in str(backbone)
    return None if own or given or others or weights != "own" else f"{backbone}-cifar100"


OmegaConf.register_new_resolver("public_statistics", known_statistics, replace=True)
OmegaConf.register_new_resolver("at_epsilon", at_epsilon, replace=True)


def plain(
    config: DictConfig, note: str = "", sizes: Sizes | None = None, base: Path | None = None
) -> dict[str, Any]:
    """A composed config with everything resolved, as dicts, lists and numbers.

    Args:
        config: what Hydra made, which is changed.
        note: how its settings were chosen, if that is known.
        sizes: how much data there is, where somebody knows.
        base: what relative paths are relative to; by default the working directory.
    """
    written = OmegaConf.select(config, "dataset.classes")
    if isinstance(written, str) and written != "???":  # a file of names, or names in quotes
        classes = Classes.written(written, base)
        OmegaConf.update(config, "dataset.classes", list(classes.names) or classes.count)
    if OmegaConf.select(config, "settings.name") == "tuned":
        OmegaConf.update(config, "strategy.settings", _tuned(config), merge=True)
    if OmegaConf.select(config, "settings.name") == "auto":
        note = settle(config, sizes, base or Path.cwd())
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


# What names a file or a folder to read; a word such as backbone.weights=own does so if it exists.
PATHS = {
    "dataset": ("path", "root", "schema", "test"),
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


def compose(
    overrides: Sequence[str], sizes: Sizes | None = None, base: Path | None = None
) -> dict[str, Any]:
    """The config that these Hydra overrides give; what is wrong with them is one line.

    Args:
        overrides: what was asked for.
        sizes: how much data there is, where somebody knows; else it is counted where it matters.
        base: what relative paths are relative to; by default the working directory.
    """
    overrides = listed(overrides)
    with errors_in_one_line(overrides):
        return plain(_compose(overrides), default_settings(overrides)[1], sizes, base)


def shown(overrides: Sequence[str], *, resolve: bool) -> str:
    """The config as YAML: what a run will use or, not resolved, how its values come about."""
    if resolve:
        return yaml.safe_dump(compose(overrides), sort_keys=False)
    overrides = listed(overrides)
    with errors_in_one_line(overrides):
        return OmegaConf.to_yaml(_compose(overrides))


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """All combinations that overrides with several values stand for, as in Hydra's multirun.

    >>> expand(["strategy=sofim", "seed=0,1"])
    [['strategy=sofim', 'seed=0'], ['strategy=sofim', 'seed=1']]
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    choices, overrides = [], listed(overrides)
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
    for overrides in map(listed, combinations):
        with errors_in_one_line(overrides):
            values = {
                o.key_or_group: o.value()
                for o in parser.parse_overrides(list(overrides))
                if "." in o.key_or_group or not (CONF / o.key_or_group).is_dir()
            }
            groups = tuple(o for o in overrides if o.partition("=")[0] not in values)
            added, note = default_settings(overrides)
            key = (groups, tuple(values), *added)
            if key not in composed:  # with the values, so that Hydra checks their names
                composed[key] = _compose(overrides)
            config = deepcopy(composed[key])
            for name, value in values.items():
                OmegaConf.update(config, name, value)
            ready = plain(config, note)
        yield ready


def _compose(overrides: Sequence[str]) -> DictConfig:
    import hydra

    offer(overrides)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", [*overrides, *default_settings(overrides)[0]])
