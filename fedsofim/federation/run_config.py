"""What `flwr run --run-config` says, as overrides of the config.

An app's `[tool.flwr.app.config]` has the keys that are changed most by short words, and `overrides`
for the rest; an app of one's own may have any other key of `fedsofim run --help`, too. Flower
has no value for "not given", so that is the empty text.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedsofim.config.words import WORDS, text
from fedsofim.core.errors import require

# What is said to the server app itself.
OWN = ("overrides", "resume")
SHORT = {**WORDS, "path": "dataset.path", "output": "output.root"}
# What an app offers, and what its pyproject.toml says of it.
OFFERED = {
    "strategy": '"sofim" (default), "fedgd", "fedadam" ...; \'fedsofim list strategies\'',
    "dataset": '"cifar10" (default), "pathmnist", "npz" ...; \'fedsofim list datasets\'',
    "path": 'the file of dataset="npz"',
    "settings": '"auto": rate, clip and rounds from public numbers; "published"; "tuned"',
    "epsilon": "the privacy budget, such as 1.0; default 10",
    "delta": "default 1e-5",
    "rounds": "such as 20",
    "clients": "among how many clients the records are dealt out; default 20",
    "seed": "default 0",
    "output": 'a folder for the runs\' directories; default "outputs"',
    "overrides": "any other key of 'fedsofim run --help': \"strategy.lr=0.3 partition.alpha=0.1\"",
    "resume": "the directory of an interrupted run",
}


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
        require(key not in taken, f"{word}={value}: {key} is given twice; give it once")
        taken = taken | {key}
        yield f"{key}={text(value)}"


def section(overrides: Sequence[str] = ()) -> str:
    """`[tool.flwr.app.config]` of an app that does what these overrides say, if told nothing else.

    >>> print(section(["privacy.epsilon=1", "strategy.lr=0.3"]).splitlines()[5])
    epsilon = 1    # the privacy budget, such as 1.0; default 10
    """
    short = {SHORT.get(word, word): word for word in OFFERED}
    given: dict[str, Any] = dict.fromkeys(OFFERED, "")
    for override in overrides:
        key, _, value = override.partition("=")
        if key in short and re.fullmatch(r"[\w.:/+-]+", value):
            given[short[key]] = _number(value)
        else:
            given["overrides"] = shlex.join([*shlex.split(given["overrides"]), override])
    pairs = {word: f"{word} = {json.dumps(value)}" for word, value in given.items()}
    lines = [f"{pairs[word]:14} # {what}" for word, what in OFFERED.items()]
    return "\n".join(["[tool.flwr.app.config]", *lines, ""])


def _number(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
