"""Frozen configs that validate themselves, built from plain mappings with clear errors."""

import difflib
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from fedsofim.core.errors import ConfigError, options, require
from fedsofim.core.settings import Inline

T = TypeVar("T")
PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


class Setting(NamedTuple):
    """A key of a config: its type, and its default, which is `MISSING` if it has none."""

    kind: Any
    default: Any


def settings_of(cls: type) -> dict[str, Setting]:
    """The keys of a dataclass, by name; those of what it holds inline are among them."""
    hints, found = get_type_hints(cls), {}
    for field in fields(cls):
        kind, default = hints[field.name], field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if _inline(kind):
            for name, setting in settings_of(kind).items():
                found[name] = Setting(setting.kind, getattr(default, name, setting.default))
        else:
            found[field.name] = Setting(kind, default)
    return found


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make the dataclass `cls` from `values`, checking names and types.

    Args:
        cls: a dataclass whose `__post_init__` checks the ranges.
        values: one value for each key that has no default.
        where: the place in the config, which begins every error message.
    """
    prefix = f"{where}." if where else ""
    known = settings_of(cls)
    for name in (name for name in values if name not in known):
        raise ConfigError(f"{prefix}{name}: no such key; {did_you_mean(name, known)}")
    for name, setting in known.items():
        optional = setting.default is not MISSING
        require(optional or name in values, f"{prefix}{name}: a value is missing")
    typed = {k: _coerce(known[k].kind, value, prefix + k) for k, value in values.items()}
    try:
        return _make(cls, typed)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The known name that is nearest to a wrong one, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {close[0]}?" if close else f"the keys are {', '.join(known) or 'none'}"


def _make(cls: type[T], typed: Mapping[str, Any]) -> T:
    """The dataclass, and within it what it holds inline, from checked values."""
    hints, own, known = get_type_hints(cls), dict(typed), settings_of(cls)
    for name, kind in ((n, k) for n, k in hints.items() if _inline(k)):
        values = {k: own.pop(k, known[k].default) for k in settings_of(kind)}
        own[name] = kind(**{k: value for k, value in values.items() if value is not MISSING})
    return cls(**own)


def _inline(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Inline)


def _coerce(kind: Any, value: Any, where: str) -> Any:
    """Check `value` against the annotation `kind`, turning whole numbers into what it asks for."""
    require(value != "???", f"{where}: a value is missing")  # Hydra's way to say so
    if get_origin(kind) in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        kinds = [k for k in get_args(kind) if k is not type(None)]
        if len(kinds) > 1:
            return value  # a part that was built already
        kind = kinds[0]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ConfigError(f"{where}={value}: {options(map(str, get_args(kind)), value)}")
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and isinstance(value, int):
        require(abs(value) <= sys.float_info.max, f"{where}: too large a number")
    if number and (kind is float or (kind is int and float(value).is_integer())):
        return kind(value)
    if kind is str and isinstance(value, str | int | float):
        return str(value)
    if kind in PLAIN:
        right = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        require(right, f"{where}={value}: must be {PLAIN[kind]}")
    return value
