"""Frozen configs that validate themselves, built from plain mappings with clear errors."""

import difflib
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedsofim.core.errors import ConfigError, require

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make the dataclass `cls` from `values`, checking names and types.

    Args:
        cls: a keyword-only dataclass whose `__post_init__` checks the ranges.
        values: one value for each field that has no default.
        where: the place in the config, which begins every error message.
    """
    prefix = f"{where}." if where else ""
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for name in (name for name in values if name not in known):
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(known)}"
        raise ConfigError(f"{prefix}{name}: no such key; {hint}")
    for name, field in known.items():
        optional = field.default is not MISSING or field.default_factory is not MISSING
        require(optional or name in values, f"{prefix}{name}: a value is missing")
    hints = get_type_hints(cls)
    typed = {name: _coerce(hints[name], value, prefix + name) for name, value in values.items()}
    try:
        return cls(**typed)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from None


def _coerce(kind: Any, value: Any, where: str) -> Any:
    """Check `value` against the annotation `kind`, turning whole numbers into what it asks for."""
    require(value != "???", f"{where}: a value is missing")  # Hydra's way to say so
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        (kind,) = (k for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is Literal:
        require(
            value in get_args(kind),
            f"{where}={value}: choose one of {', '.join(map(str, get_args(kind)))}",
        )
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and (kind is float or (kind is int and float(value).is_integer())):
        return kind(value)
    if kind is str and isinstance(value, str | int | float):
        return str(value)
    if kind in (int, float, bool, str):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        right = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        require(right, f"{where}={value}: must be {names[kind]}")
    return value
