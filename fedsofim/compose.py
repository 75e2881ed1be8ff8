"""Hydra configs, as plain mappings."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedsofim.config import ConfigError

CONF = Path(__file__).resolve().parent.parent / "conf"
# The budgets for which the paper's authors published settings.
EPSILONS = (0.5, 1.0, 5.0, 10.0)


def at_epsilon(values: Sequence[Any], *, _root_: DictConfig) -> Any:
    """Of the settings for `EPSILONS`, the one nearest to the run's budget, as a ratio."""
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
    values["strategy"].pop("published", None)
    return values


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The config that these Hydra overrides give; a wrong one is told in one line."""
    import hydra

    def composed() -> dict[str, Any]:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return plain(hydra.compose("config", list(overrides)))

    values: dict[str, Any] = telling_config_errors(composed)
    return values


def telling_config_errors(call: Callable[[], Any]) -> Any:
    """Call, and tell what Hydra finds wrong with an override in one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        return call()
    except (HydraException, OmegaConfBaseException) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        told = [line for line in lines if line and not line.startswith(("full_key", "object_type"))]
        head, *options = told if len(told) > 1 and told[1].endswith(":") else [" ".join(told)]
        raise ConfigError(
            " ".join([head, options[0], ", ".join(options[1:])]) if options else head
        ) from None
