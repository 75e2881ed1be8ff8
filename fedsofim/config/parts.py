"""Parts of a run that are found by name: the project's, an installed package's, or the user's own.

A part is a frozen dataclass; its fields are its keys in the config. It is named in one of four
ways: `strategy=sofim`, one of the project's; `strategy=mine`, an entry point of an installed
package, in the group `fedsofim.strategies`; `strategy=package.module:MyRule`; or as a class that is
handed over in Python (`section`). A config names it in a text, so every process of a run imports it
by itself.
"""

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from fedsofim.clients import CLIENTS, Program
from fedsofim.config.build import PLAIN, settings_of
from fedsofim.core.errors import choose, require
from fedsofim.core.loading import load_object
from fedsofim.core.settings import Inline
from fedsofim.data import flower_partition
from fedsofim.data.datasets import NAMES, DatasetConfig
from fedsofim.data.flower_partition import FlowerDivision, is_flower
from fedsofim.data.hugging_face import HuggingFace
from fedsofim.data.own import Data
from fedsofim.data.partition import Division, Kind, Partition
from fedsofim.data.table import Table
from fedsofim.models.kinds import MODELS, Model
from fedsofim.models.metrics import METRICS, Metric
from fedsofim.strategies import STRATEGIES, Rule
from fedsofim.transforms import TRANSFORMS
from fedsofim.transforms.kfc import Transform


class Group(NamedTuple):
    """A choice in the config.

    Attributes:
        base: what a part of one's own derives from.
        known: the project's own parts, by name.
        points: the group of entry points in which packages offer theirs.
        key: which key of the section holds the name.
    """

    base: type
    known: Mapping[str, type]
    points: str
    key: str = "name"


GROUPS: dict[str, Group] = {
    "dataset": Group(
        Data,
        {**dict.fromkeys(NAMES, DatasetConfig), "table": Table, "hf": HuggingFace},
        "fedsofim.datasets",
    ),
    "partition": Group(
        Division, dict.fromkeys(get_args(Kind), Partition), "fedsofim.partitions", key="kind"
    ),
    "client": Group(Program, CLIENTS, "fedsofim.clients"),
    "strategy": Group(Rule, STRATEGIES, "fedsofim.strategies"),
    "model": Group(Model, MODELS, "fedsofim.models"),
    "transform": Group(Transform, TRANSFORMS, "fedsofim.transforms"),
    "metric": Group(Metric, METRICS, "fedsofim.metrics"),
}
# Classes that were handed over in Python and that no import finds, such as a notebook's.
_handed: dict[str, type] = {}


def is_own(group: str, name: object) -> bool:
    """Whether a name is not one of the project's own parts, but `package.module:Name`."""
    return group in GROUPS and isinstance(name, str) and ":" in name and not _flower(group, name)


def _flower(group: str, name: object) -> bool:
    """Whether it is a partitioner of Flower's, of which there is one list."""
    return group == "partition" and is_flower(name)


def find(group: str, name: object) -> type[Any]:
    """The class of a part, checked to be one."""
    known = GROUPS[group].known
    if _flower(group, name):
        return FlowerDivision
    if isinstance(name, str) and name not in known:
        if name in _handed:
            return _checked(group, name, _handed[name])
        if place := name if is_own(group, name) else installed(group).get(name):
            return _checked(group, place, load_object(place, group))
    return choose(known, name, f"{group}.{GROUPS[group].key}")


def installed(group: str) -> dict[str, str]:
    """Where installed packages say that their parts are, by name."""
    return {point.name: point.value for point in entry_points(group=GROUPS[group].points)}


def section(group: str, part: object) -> dict[str, Any]:
    """A part that is handed over in Python, as a config names it.

    Args:
        group: what it is: `strategy`, `client`, ...
        part: a class, whose settings are then its defaults, or an instance with its settings.
    """
    cls, known = part if isinstance(part, type) else type(part), GROUPS[group].known
    name = next((name for name, kind in known.items() if kind is cls), _handed_over(cls))
    values = defaults(_checked(group, name, cls))
    if not isinstance(part, type):
        values = {key: _setting(part, key) for key in values}
    return {GROUPS[group].key: name, **values}


def _handed_over(cls: type) -> str:
    """The name of a class that was handed over; this process finds it even if no import does."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    _handed[name] = cls
    return name


def _setting(part: object, key: str) -> Any:
    """A setting of a part, or of what the part holds inline."""
    if hasattr(part, key):
        return getattr(part, key)
    held = (getattr(part, field.name) for field in fields(part))  # type: ignore[arg-type]
    return next(getattr(one, key) for one in held if isinstance(one, Inline) and hasattr(one, key))


def defaults(cls: type) -> dict[str, Any]:
    """The keys of a part with their defaults; `???` is Hydra's way to ask for a value."""
    return {k: "???" if s.default is MISSING else s.default for k, s in settings_of(cls).items()}


def own_parts(values: Mapping[str, Any]) -> Iterator[str]:
    """Those parts of a plain config that are named as `package.module:Name`; imports nothing."""
    for group in GROUPS:
        section = values.get(group)
        name = section.get(GROUPS[group].key) if isinstance(section, Mapping) else None
        if is_own(group, name):
            yield f"{group}={name}"


def offer(overrides: Sequence[str]) -> None:
    """Let Hydra know of the parts of one's own that these overrides choose.

    Hydra finds its options in files; for these it is given the section that a file would hold.
    """
    for override in overrides:
        group, _, chosen = override.partition("=")
        if group == "backbone" and ":" in chosen:
            _offer_backbone(chosen.replace("\\:", ":").strip("'\" "))
        for name in chosen.split(",") if group in GROUPS else ():
            _offer(group, name.replace("\\:", ":").strip("'\" "))  # a sweep escapes colons


def _offer_backbone(name: str) -> None:
    """Let Hydra know of a backbone of somebody else's; what it is, shows when it is used."""
    from hydra.core.config_store import ConfigStore

    node = {"name": name, "weights": "???", "download": False}
    store = ConfigStore.instance()
    store.store(group="backbone", name=name, node={"backbone": node}, package="_global_")


def _offer(group: str, name: str) -> None:
    key, known = GROUPS[group].key, GROUPS[group].known
    flower = _flower(group, name)
    if name in known or not (flower or is_own(group, name) or name in installed(group)):
        return
    from hydra.core.config_store import ConfigStore

    cls = find(group, name)
    keys = flower_partition.section(name) if flower else {key: name, **defaults(cls)}
    node: dict[str, Any] = {group: keys}
    client = getattr(cls, "client", None)
    if group == "strategy" and client is not None:
        goes_with = _handed_over(client) if isinstance(client, type) else client
        _offer("client", goes_with)
        node["defaults"] = [{"override /client": goes_with}]
    ConfigStore.instance().store(group=group, name=name, node=node, package="_global_")


def _checked(group: str, name: str, part: object) -> type[Any]:
    """The part, if it is a class of the right kind whose settings a config can hold."""
    base, told = GROUPS[group].base, f"{group}={name}"
    right = isinstance(part, type) and issubclass(part, base)
    right = right or part in GROUPS[group].known.values()
    require(right, f"{told}: must be a class derived from {base.__module__}.{base.__name__}")
    assert isinstance(part, type)
    decorated = "__dataclass_fields__" in vars(part) or not inspect.get_annotations(part)
    require(
        is_dataclass(part) and decorated,  # else its own fields would be no settings
        f"{told}: must be a dataclass; decorate it with @dataclass(frozen=True, kw_only=True)",
    )
    lacks = ", ".join(sorted(getattr(part, "__abstractmethods__", ())))
    require(not inspect.isabstract(part), f"{told}: does not define {lacks}")
    for key, (kind, _) in settings_of(part).items():
        taken = key in (GROUPS[group].key, "settings") and part not in GROUPS[group].known.values()
        require(not taken, f"{told}: {key} has a meaning in every config; use another name")
        require(
            _fits_a_config(kind),
            f"{told}: {key} is of type {kind}; a config holds numbers, texts, true and false, "
            "a Literal of them, and None besides one of these",
        )
    return part


def _fits_a_config(kind: Any) -> bool:
    if get_origin(kind) in (Union, types.UnionType):
        others = [k for k in get_args(kind) if k is not type(None)]
        return len(others) == 1 and _fits_a_config(others[0])
    return kind in PLAIN or get_origin(kind) is Literal
