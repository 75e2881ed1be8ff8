"""Keys and values in the words of Python and of Flower, as the command line takes them."""

import re
from pathlib import Path
from typing import Any

from fedsofim.core.errors import ConfigError

# Short words for the keys that are given most often.
WORDS = {
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
    "clip": "privacy.clip",
    "noise_multiplier": "privacy.noise_multiplier",
    "adjacency": "privacy.adjacency",
    "trust": "privacy.trust",
    "clients": "partition.clients",
    "alpha": "partition.alpha",
    "lr": "strategy.lr",
    "holdout": "dataset.holdout",
}


def text(value: Any) -> str:
    """A value as the command line takes it.

    >>> text(0.1), text(None), text(True), text("sofim"), text("my file.npz")
    ('0.1', 'null', 'true', 'sofim', "'my file.npz'")
    """
    from hydra.core.override_parser.types import Quote, QuotedString

    if hasattr(value, "item"):
        value = value.item()  # a NumPy number
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(text, value))}]"
    if not isinstance(value, str | Path):
        raise ConfigError(f"{value!r}: not a number, a text, or a list of them")
    # A word that is no number and none of null, true and false needs no quotes.
    plain = re.fullmatch(r"(?!(null|true|false|inf|nan)$)[a-z_/][\w./:-]*", str(value), re.A | re.I)
    return str(value) if plain else QuotedString(str(value), Quote.single).with_quotes()
