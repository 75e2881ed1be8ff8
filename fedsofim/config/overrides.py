"""What is wrong with a Hydra override, in one line."""

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedsofim.core.errors import ConfigError


def telling_config_errors(call: Callable[[], Any], overrides: Sequence[str]) -> Any:
    """Call, and tell what Hydra finds wrong with an override in one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        return call()
    except (HydraException, OmegaConfBaseException) as error:
        told = str(error)
    if match := re.search(r"Could not find '(.+)/(.+)'\s+Available options in .*:", told):
        options = told[match.end() :].partition("Config search path")[0].split()
        raise ConfigError(f"{match[1]}={match[2]}: unknown; choose one of {', '.join(options)}")
    if match := re.match(r"Could not override '(.+)'\.", told):
        raise ConfigError(_no_such_key(match[1], overrides))
    lines = told.partition("Config search path")[0].splitlines()
    raise ConfigError(
        " ".join(li for li in lines if not re.match(r"\s*(full_key|object_type)", li))
    )


def _no_such_key(key: str, overrides: Sequence[str]) -> str:
    from fedsofim.config.compose import compose

    def names(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, value in values.items():
            yield prefix + name
            if isinstance(value, dict):
                yield from names(value, f"{prefix}{name}.")

    groups = [o for o in overrides if re.match(r"\w+=[\w.:]+$", o) and not o.startswith(f"{key}=")]
    try:
        close = difflib.get_close_matches(key, names(compose(groups)), n=1, cutoff=0.75)
    except Exception:  # something else is wrong as well
        close = []
    return f"{key}: no such key; " + (
        f"did you mean {close[0]}?" if close else "'fedsofim run --help' lists them"
    )


def compose_told(overrides: Sequence[str]) -> dict[str, Any]:
    """The config that these overrides give; what is wrong with them is one line."""
    from fedsofim.config.compose import compose

    values: dict[str, Any] = telling_config_errors(lambda: compose(overrides), overrides)
    return values
