"""Mistakes that a user can mend, told in one line."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """A value the user gave is wrong; the message is one line that says what would be right.

    Attributes:
        details: what others said about it in full, for a file; empty if the line says it all.
    """

    details = ""


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


def options(known: Iterable[str], name: object) -> str:
    """What there is to choose from, and which of it was probably meant.

    >>> options(["sofim", "fedgd"], "sofin"), options(["sofim", "fedgd"], 3)
    ('choose one of sofim, fedgd; did you mean sofim?', 'choose one of sofim, fedgd')
    >>> options(["ray", "local"], "rya")
    'choose one of ray, local; did you mean ray?'
    """
    names = list(known)
    near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.66)
    return f"choose one of {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else "")


def choose(known: Mapping[str, T], name: object, what: str) -> T:
    """`known[name]`, or an error that lists the valid names."""
    right = isinstance(name, str) and name in known
    require(right, f"{what}={name}: unknown; {options(known, name)}")
    return known[str(name)]
