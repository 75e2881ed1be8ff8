"""Lists what could be written at the cursor; the shell's completion script calls it.

It reads the config files themselves, and neither Hydra nor NumPy: it runs at every press of a key.
"""

import argparse
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedsofim.cli.main import COMMANDS
from fedsofim.core.shipped import described, shipped

Candidates = Iterator[tuple[str, str]]  # what to write, and what it is


def main(arguments: Sequence[str]) -> None:
    """Print a candidate a line, with what it is behind a tab."""
    words = list(arguments[1:] if arguments[:1] == ["--"] else arguments) or [""]
    for candidate, about in candidates(words):
        if candidate.startswith(words[-1]):
            print(f"{candidate}\t{about}")


def candidates(words: Sequence[str]) -> Candidates:
    """All completions of the last of the words, which may be empty."""
    if len(words) == 1:
        yield from COMMANDS.items()
        return
    command, *before, word = words
    module = import_module(f"fedsofim.cli.{command}") if command in COMMANDS else None
    if module is None or not hasattr(module, "parser"):
        return
    parser, before = _inner(module.parser(), before)
    if before and (waiting := _option(parser, before[-1])) and waiting.nargs != 0:
        yield from ((str(choice), "") for choice in waiting.choices or ())
        return
    for action in parser._actions:
        if action.option_strings and word.startswith("-"):
            yield action.option_strings[-1], action.help or ""
        elif not action.option_strings and action.dest == "overrides":
            yield from _values(word) if "=" in word else _keys(before)
        elif not action.option_strings:
            yield from ((str(choice), "") for choice in action.choices or ())


def _inner(
    parser: argparse.ArgumentParser, words: list[str]
) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of a command's own command, such as `deploy client`, and the words after it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words and words[0] in action.choices:
            return action.choices[words[0]], words[1:]
    return parser, words


def _option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    return next((a for a in parser._actions if word in a.option_strings), None)


def _groups() -> list[Path]:
    return sorted(f for f in shipped("conf").iterdir() if any(f.glob("*.yaml")))


def _values(word: str) -> Candidates:
    """The options of a group, as `strategy=sofim`."""
    key = word.partition("=")[0]
    if folder := next((f for f in _groups() if f.name == key), None):
        for file in sorted(folder.glob("*.yaml")):
            yield f"{key}={file.stem}", described(key, file.stem)


def _keys(before: Sequence[str]) -> Candidates:
    """The groups, and all keys that there are under what was chosen before."""
    yield from ((f"{group.name}=", "choose one") for group in _groups())
    for key, value in _sections(dict(w.split("=", 1) for w in before if "=" in w)).items():
        if not isinstance(value, dict):
            yield f"{key}=", ""
        else:
            yield from ((f"{key}.{name}=", "") for name in value if name not in NO_KEYS)


NO_KEYS = ("name", "settings")  # a group's choice sets them


def _sections(chosen: dict[str, str]) -> dict[str, Any]:
    """The config, with the names of all values, if not what they come to be."""
    sections = _read("config")
    entries = (entry for entry in sections.pop("defaults") if isinstance(entry, dict))
    usual = {group: option for entry in entries for group, option in entry.items()}
    for group in (folder.name for folder in _groups() if folder.name not in VALUELESS):
        content = _read(f"{group}/{chosen.get(group, usual[group])}")
        for override in content.pop("defaults", []):  # a strategy brings its client
            for other, option in override.items():
                name = other.removeprefix("override /")
                sections[name] = _read(f"{name}/{chosen.get(name, option)}")
        # A file speaks of its own section, or names all sections that it speaks of.
        for name, part in (content if group in content else {group: content}).items():
            sections[name] = {**sections.get(name, {}), **part}
    return sections


VALUELESS = ("settings", "experiment")  # groups that choose other values, and hold none


def _read(name: str) -> dict[str, Any]:
    import yaml

    file = shipped("conf") / f"{name}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return (yaml.load(file.read_text(), loader) or {}) if file.is_file() else {}
