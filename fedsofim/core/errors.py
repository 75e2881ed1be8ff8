"""Mistakes that a user can mend, told in one line."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """A value the user gave is wrong; the message is one line that says what would be right."""


class Stopped(Exception):  # noqa: N818 - a wish that was followed, not an error
    """Somebody asked to stop, and nothing is lost; the message is one line that says how to go on.

    Attributes:
        path: the directory from which to go on, if there is one.
    """

    def __init__(self, message: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.path = path


def require(condition: bool, message: str) -> None:
    """Raise a `ConfigError` with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def choose(options: Mapping[str, T], name: object, what: str) -> T:
    """`options[name]`, or an error that lists the valid names."""
    known = isinstance(name, str) and name in options
    require(known, f"{what}={name}: unknown; choose one of {', '.join(options)}")
    return options[str(name)]
