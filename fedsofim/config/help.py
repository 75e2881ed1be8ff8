"""What `fedsofim run --help` shows: the choices, and every key with its value and its meaning.

Meanings are those of the docstrings: what a class says of its attributes.
"""

import inspect
import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedsofim.config.compose import CONF, compose
from fedsofim.config.parts import GROUPS, installed
from fedsofim.config.schema import Config, kinds_of
from fedsofim.core.settings import Inline

HEADER = """usage: fedsofim run [group=option ...] [key=value ...] [--multirun] [--cfg job] [--help]

Train privately, in a federation. With --help, choices change what is shown:
'fedsofim run strategy=fedadam --help' lists the keys of FedAdam.
"""
EXAMPLES = """Examples:
  fedsofim run privacy.epsilon=1 strategy=fedgd
  fedsofim run dataset=pathmnist partition.alpha=0.1 partition.clients=50
  fedsofim run dataset=npz dataset.path=my.npz output.dir=my-run
  fedsofim run dataset=bloodmnist dataset.root=images backbone=resnet20
  fedsofim run dataset=folder dataset.root=my-images
  fedsofim run --multirun seed=0,1,2 strategy=sofim,fedgd
  fedsofim run --cfg job --resolve       show the config, and do not run"""
OWN = """group=package.module:Name, a class in the current folder or installed; its fields become
keys. examples/ has one of each."""
COLUMN = 34  # where meanings begin


def manual(overrides: Sequence[str]) -> str:
    """The page for the config that these overrides give."""
    values = compose(overrides)
    kinds = kinds_of(values)
    about = _meanings(Config)
    lines = [HEADER, "Choose one of each (group=option):"]
    for group in sorted(path for path in CONF.iterdir() if any(path.glob("*.yaml"))):
        options = {file.stem for file in group.glob("*.yaml")}
        options |= installed(group.name).keys() if group.name in GROUPS else set()
        lines += _entry(f"  {group.name}", ", ".join(sorted(options)))
    lines += ["", *_entry(f"Or one of your own, for {', '.join(GROUPS)}:", OWN)]
    lines += ["", "Override any value (key=value):"]
    for key, value in values.items():
        if not isinstance(value, dict):
            lines += _entry(f"  {key}={_shown(value)}", about[key])
    for key, section in values.items():
        if isinstance(section, dict):
            lines += ["", *_section(key, section, kinds[key])]
    return "\n".join([*lines, "", EXAMPLES])


def _section(name: str, section: dict[str, Any], kind: type) -> Iterator[str]:
    what = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    chosen = f"{name}={section['name']}" if "name" in section else name
    yield from _entry(chosen, what)
    about = _meanings(kind)
    for key, value in section.items():
        if key != "name":
            yield from _entry(f"  {name}.{key}={_shown(value)}", about.get(key, ""))


def _entry(left: str, right: str) -> list[str]:
    """A term, and its meaning beside it, or below where the term is long."""
    width = max(COLUMN + 30, min(120, shutil.get_terminal_size().columns))
    body = textwrap.wrap(right, width - COLUMN, break_long_words=False, break_on_hyphens=False)
    rest = [" " * COLUMN + line for line in body]
    if body and len(left) < COLUMN - 1:
        rest[0] = left.ljust(COLUMN) + body[0]
        return rest
    return [left, *rest]


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, str | float) else json.dumps(value)  # inf is no JSON


def _meanings(kind: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of its attributes, and what these may be."""
    found: dict[str, str] = {}
    for base in reversed(inspect.getmro(kind)):
        _, _, block = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        block = re.split(r"\n\n|\n(?=\S)", block)[0]
        for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", block, re.MULTILINE):
            found[name] = _plain(text)
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and issubclass(hint, Inline):
            found |= _meanings(hint)
            continue
        options = get_args(hint) if get_origin(hint) is Literal else ()
        if name in found and not all(option in found[name] for option in options):
            found[name] += f" One of {', '.join(options)}."
    return found


def _plain(text: str) -> str:
    r"""Docstrings without their marks.

    >>> _plain(r"the step `eta`, $\eta_0 \beta^{t+1}$")
    'the step eta, eta_0 beta^(t+1)'
    """
    text = re.sub(r"\s+", " ", text.replace(r"\,", " "))
    return text.translate(str.maketrans("{}", "()", "`$\\"))
