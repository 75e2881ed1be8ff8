"""`fedsofim list`: what there is to choose from, one line each."""

import re
from collections.abc import Mapping, Sequence
from inspect import getdoc

from fedsofim.core.arguments import Parser
from fedsofim.core.shipped import described, shipped

ABOUT = "The options of a group, as 'fedsofim run group=option' takes them, and what each is."

# What is not in files, but in a library: only named, so that the library is not imported.
MORE = {
    "partition": {
        "flwr:NAME": "A partitioner of Flower Datasets: flwr:dirichlet, flwr:shard, flwr:linear ..."
    },
    "backbone": {
        "torchvision:NAME": "Any classifier of torchvision's, such as torchvision:resnet18.",
        "timm:NAME": "Any model of timm's, such as timm:vit_tiny_patch16_224.",
    },
}


def groups() -> dict[str, str]:
    """The groups by their plural, which is what `list` is given."""
    found = sorted(f.name for f in shipped("conf").iterdir() if any(f.glob("*.yaml")))
    return {_plural(name): name for name in found}


def _plural(name: str) -> str:
    return name if name in ("privacy", "settings") else re.sub("y$", "ie", name) + "s"


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim list", description=ABOUT)
    made.add_argument("group", nargs="?", choices=list(groups()), metavar="GROUP")
    return made


def main(arguments: Sequence[str]) -> None:
    """Print one line for each option of a group, or for each group."""
    chosen, known = parser().read(arguments), groups()
    if not chosen.group:
        lines = {plural: ", ".join(_options(name)) for plural, name in known.items()}
    else:
        lines = _described(known[chosen.group])
    width = max(map(len, lines)) + 2
    print("\n".join(f"{name:{width}}{what}" for name, what in lines.items()))


def _options(group: str) -> list[str]:
    return sorted(file.stem for file in (shipped("conf") / group).glob("*.yaml"))


def _described(group: str) -> dict[str, str]:
    """What each option's file says of it first, or else its class."""
    from fedsofim.config.parts import GROUPS

    classes: Mapping[str, type] = GROUPS[group].known if group in GROUPS else {}
    options = {name: described(group, name) for name in _options(group)} | MORE.get(group, {})
    return {name: _first_line(kind) for name, kind in classes.items()} | options


def _first_line(kind: type) -> str:
    return (getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
