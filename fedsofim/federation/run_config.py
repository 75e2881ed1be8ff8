"""What `flwr run --run-config` says, as overrides of the config.

An app's `[tool.flwr.app.config]` has the keys that are changed most by short words, and `overrides`
for the rest; an app of one's own may have any other key of `fedsofim run --help`, too. Flower
has no value for "not given", so that is the empty text.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from fedsofim.config.words import WORDS, text
from fedsofim.core.errors import require

# What is said to the server app itself.
OWN = ("overrides", "resume")
SHORT = {**WORDS, "path": "dataset.path", "output": "output.root"}


def overrides_of(given: Mapping[str, Any]) -> list[str]:
    """The overrides that a run's config stands for; none is given in two ways.

    >>> overrides_of({"epsilon": 1.0, "path": "my file.npz", "seed": "", "overrides": "rounds=5"})
    ['privacy.epsilon=1.0', "dataset.path='my file.npz'", 'rounds=5']
    """
    rest = shlex.split(str(given.get("overrides", "")))
    return [*_plain(given, {word.lstrip("+~").partition("=")[0] for word in rest}), *rest]


def _plain(given: Mapping[str, Any], taken: set[str]) -> Iterator[str]:
    for word, value in given.items():
        if word in OWN or value == "":
            continue
        key = SHORT.get(word, word)
        require(key not in taken, f"{word}={value}: {key} is in overrides, too; give it once")
        yield f"{key}={text(value)}"
