"""A run's settings from Python: the keys of the command line, by the same names."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import yaml

from fedsofim.config import schema
from fedsofim.config.auto import Sizes
from fedsofim.config.compose import CONF, compose, make_absolute
from fedsofim.config.overrides import nearest
from fedsofim.config.words import WORDS, text
from fedsofim.core.errors import require
from fedsofim.runs.record import dotted

# What config.yaml holds itself, and the folders beside it.
PLAIN = tuple(
    key for key in yaml.safe_load((CONF / "config.yaml").read_text()) if key != "defaults"
)
GROUPS = tuple(sorted(path.name for path in CONF.iterdir() if any(path.glob("*.yaml"))))


class Words(TypedDict, total=False):
    """The settings that may be given by keyword; any other is given in a mapping."""

    strategy: "str | type | Mapping[str, Any]"
    dataset: "str | type | Mapping[str, Any]"
    partition: "str | type | Mapping[str, Any]"
    client: "str | type | Mapping[str, Any]"
    model: "str | type | Mapping[str, Any]"
    transform: "str | type | Mapping[str, Any]"
    metric: "str | type | Mapping[str, Any]"
    privacy: "str | Mapping[str, Any]"
    secagg: Mapping[str, Any]
    engine: "str | Mapping[str, Any]"
    backbone: "str | Mapping[str, Any]"
    settings: str
    experiment: str
    features: Mapping[str, Any]
    rounds: int
    seed: int
    participation: float
    aggregation: str
    start: str
    start_share: float
    average: str
    track: str | None
    malicious_fraction: float
    epsilon: float
    delta: float
    clip: float
    noise_multiplier: float | None
    adjacency: str
    trust: str
    clients: int
    alpha: float
    lr: float
    holdout: float


class Config:
    """All settings of a run, checked.

    Every key of `fedsofim run --help` may be given: as a keyword, as a dotted name in a mapping, or
    nested. A group is chosen by its name (`strategy="fedgd"`, `privacy="none"`). The short words
    epsilon, delta, clip, noise_multiplier, adjacency, trust, clients, alpha, lr and holdout stand
    for the keys that end in them.

    Args:
        *given: mappings of names to values, or other configs to begin with.
        sizes: how much data there is, where it is in memory.
        **words: more of them. If a name is given twice, the last one counts.

    Attributes:
        settings: what was given, by dotted name.
        values: all of it, as `config.yaml` holds it.
        checked: the same with types, as the program uses it.

    Raises:
        ConfigError: a name or a value is wrong; the message says what would be right.

    >>> config = Config({"strategy": {"name": "sofim", "lr": 0.3}}, epsilon=1, rounds=20)
    >>> config["strategy.lr"], config["privacy.epsilon"], config["rounds"]
    (0.3, 1, 20)
    >>> Config(epsilom=1)
    Traceback (most recent call last):
    ...
    fedsofim.core.errors.ConfigError: epsilom: no such key; did you mean epsilon?
    """

    settings: dict[str, Any]
    values: dict[str, Any]
    checked: schema.Config

    def __init__(
        self,
        *given: "Mapping[str, Any] | Config | None",
        sizes: Sizes | None = None,
        **words: Unpack[Words],
    ) -> None:
        self.settings = {}
        for one in (*given, words):
            known = one.settings if isinstance(one, Config) else dict(named(one or {}))
            self.settings |= known
        values = compose([f"{key}={text(value)}" for key, value in self.settings.items()], sizes)
        make_absolute(values, Path.cwd())
        self._take(values)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Config":
        """The config that a run was written with, as `config.yaml` holds it."""
        config = cls.__new__(cls)
        config.settings = dict(named({k: v for k, v in values.items() if k != "note"}))
        config._take(values)
        return config

    def _take(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.checked = schema.parse(values)

    def __getitem__(self, name: str) -> Any:
        """The value of a key, by its dotted name or its short word."""
        known = dict(dotted(self.values))
        key = WORDS.get(name, name)
        require(key in known, _no_such_key(name, [*known, *WORDS]))
        return known[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]  # it compares by what it holds

    def __repr__(self) -> str:
        return f"Config({self.settings})"


def named(given: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """Keys in full, with their values; groups by name come as the command line takes them."""
    for name, value in given.items():
        key, top = WORDS.get(name, name), name.partition(".")[0]
        known = (*WORDS, *PLAIN, *GROUPS)
        require(top in known, _no_such_key(name, known))
        if isinstance(value, Mapping):
            choice = "kind" if name == "partition" else "name"
            if choice in value and name in GROUPS:
                yield name, value[choice]
            inner = {k: v for k, v in value.items() if k != choice or name not in GROUPS}
            yield from ((f"{name}.{k}", v) for k, v in dotted(inner))
        else:
            yield key, value


def _no_such_key(name: str, known: Sequence[str]) -> str:
    found = nearest(name, known)
    hint = f"did you mean {' or '.join(found)}?" if found else "'fedsofim run --help' has all"
    return f"{name}: no such key; {hint}"
