"""Hydra configs, as plain mappings."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

CONF = Path(__file__).resolve().parent.parent / "conf"
# The budgets for which the paper's authors published settings.
EPSILONS = (0.5, 1.0, 5.0, 10.0)


def at_epsilon(values: Sequence[Any] | None, *, _root_: DictConfig) -> Any:
    """Of the settings for `EPSILONS`, the one nearest to the run's budget, as a ratio."""
    if values is None:
        return None  # a bad direction; the config's own check says so
    epsilon = OmegaConf.select(_root_, "privacy.epsilon")
    try:
        wanted = math.log(min(max(float(epsilon), EPSILONS[0]), EPSILONS[-1]))
    except (TypeError, ValueError):
        return values[-1]  # a bad budget; the config's own check says so
    distances = [abs(math.log(e) - wanted) for e in EPSILONS]
    return values[distances.index(min(distances))]


OmegaConf.register_new_resolver("at_epsilon", at_epsilon, replace=True)


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed config with everything resolved, as dicts, lists and numbers."""
    values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    values.pop("hydra", None)
    if isinstance(values.get("strategy"), dict):
        values["strategy"].pop("settings", None)
    return values


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The config that these Hydra overrides give."""
    import hydra

    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return plain(hydra.compose("config", list(overrides)))
