"""Hydra configs, as plain mappings."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

CONF = Path(__file__).resolve().parent.parent / "conf"
# The budgets for which the paper's authors published settings.
EPSILONS = (0.5, 1.0, 5.0, 10.0)


def published(name: str, *, _root_: DictConfig, _parent_: DictConfig) -> Any:
    """The published setting of this name whose budget is nearest to the run's, as a ratio."""
    table = _parent_.published
    direction = _parent_.get("direction")
    values = table.get(name) or (table.get(direction) or {}).get(name)
    if values is None:
        return None  # a bad direction; the config's own check says so
    try:
        epsilon = float(OmegaConf.select(_root_, "privacy.epsilon"))
    except (TypeError, ValueError):
        return values[-1]  # a bad budget; the config's own check says so
    wanted = math.log(min(max(epsilon, EPSILONS[0]), EPSILONS[-1]))
    distances = [abs(math.log(e) - wanted) for e in EPSILONS]
    return values[distances.index(min(distances))]


OmegaConf.register_new_resolver("published", published, replace=True)


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed config with everything resolved, as dicts, lists and numbers."""
    values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    values.pop("hydra", None)
    if isinstance(values.get("strategy"), dict):
        values["strategy"].pop("published", None)
    return values


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The config that these Hydra overrides give."""
    import hydra

    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return plain(hydra.compose("config", list(overrides)))
