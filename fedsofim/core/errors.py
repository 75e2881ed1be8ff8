"""Mistakes that a user can mend, told in one line."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """A value the user gave is wrong; the message is one line that says what would be right."""


class Stopped(Exception):  # noqa: N818 - a wish that was followed, not an error
    """A run was asked to stop, and stopped after a whole round.

    Attributes:
        path: the run's directory, from which it can be continued; `None` if it has none.
    """

    def __init__(self, done: int, rounds: int, path: Path | None) -> None:
        self.path = path
        how = "It was not written, and cannot be continued."
        if path is not None:
            how = f"Continue with: fedsofim resume {path}"
        super().__init__(f"Stopped after round {done} of {rounds}. {how}")


def require(condition: bool, message: str) -> None:
    """Raise a `ConfigError` with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def choose(options: Mapping[str, T], name: object, what: str) -> T:
    """`options[name]`, or an error that lists the valid names."""
    known = isinstance(name, str) and name in options
    require(known, f"{what}={name}: unknown; choose one of {', '.join(options)}")
    return options[str(name)]
