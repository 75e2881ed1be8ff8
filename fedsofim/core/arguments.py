"""Reads a command line; what is wrong with it is told in one line."""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fedsofim.core.errors import ConfigError, options


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
        if match := re.search(r"^(.*)invalid choice: '(.*?)' \(choose from (.*)\)$", message):
            known = [word.strip("' ") for word in match[3].split(",")]
            message = f"{match[1]}{match[2]}: unknown; {options(known, match[2])}"
        if missing := message.partition("arguments are required: ")[2]:
            known = [", ".join(a.choices) for a in self._actions if a.dest in missing and a.choices]
            message = f"give {missing}" + "".join(f"; it is one of {names}" for names in known)
        raise ConfigError(f"{self.prog.removeprefix('fedsofim ')}: {message}")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options and words of a command, in any order."""
        if self.add_help and {"-h", "--help"} & {*arguments}:
            self.print_help()  # argparse takes the words' defaults away while it reads them so
            self.exit()
        chosen, rest = self.parse_known_intermixed_args(list(arguments))
        self.refuse(rest)
        return chosen

    def refuse(self, rest: Sequence[str]) -> None:
        """Say of words that are left over what may have been meant."""
        for word in rest:
            hint = self.unknown(word) if self.unknown else ""
            known = [a.option_strings[-1] for a in self._actions if a.option_strings]
            name = word.partition("=")[0]
            raise ConfigError(f"{word}: no such option; {hint or options(known, name)}")

    def chosen(self, command: str) -> "Parser":
        """The parser of one of its commands."""
        kinds = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
        found: Parser = next(kinds).choices[command]
        return found
