"""One way to read a command line: what is wrong with it is one line."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fedsofim.core.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are `ConfigError`s, and whose options may stand anywhere.

    Args:
        unknown: given an option that there is not, says what to write instead, if it knows.
        **given: as for `ArgumentParser`; the description is shown as it is laid out.
    """

    def __init__(self, *, unknown: Callable[[str], str] | None = None, **given: Any) -> None:
        given.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **given)
        self.unknown = unknown

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong, without the usage before it."""
        raise ConfigError(f"{self.prog.removeprefix('fedsofim ')}: {message}")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options and words of a command, in any order."""
        chosen, rest = self.parse_known_intermixed_args(list(arguments))
        for word in rest:
            hint = self.unknown(word) if self.unknown else ""
            known = ", ".join(a.option_strings[-1] for a in self._actions if a.option_strings)
            raise ConfigError(f"{word}: no such option; {hint or f'choose one of {known}'}")
        return chosen
