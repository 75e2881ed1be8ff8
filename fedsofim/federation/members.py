"""What nodes say about themselves, read with suspicion."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedsofim.core.errors import ConfigError
from fedsofim.data.classes import checked_names
from fedsofim.federation.decoding import shown

# No public key of a client's, in OpenSSH's words, is longer.
LONGEST_KEY = 512


class Member(NamedTuple):
    """What a node said about itself.

    Attributes:
        owner: whether it holds data of its own, or plays clients of a simulation.
        client: for whom it speaks, if it is an owner.
        size: how many records it has; public.
        features: how many features a record has.
        classes: how many classes its owner says there are.
        key: its public key, where sums are masked.
        peers: a digest of all clients' keys, as it has pinned them.
        names: what its owner calls the classes, with bars between; empty if it names none.
    """

    owner: bool
    client: int = -1
    size: int = 0
    features: int = 0
    classes: int = 0
    key: str = ""
    peers: str = ""
    names: str = ""

    def fits(self, features: int, classes: int, names: str) -> bool:
        """Whether it is an owner whose records fit a model; who names no classes trusts others."""
        return self.owner and not any(self.misfit(features, classes, names))

    def misfit(self, features: int, classes: int, names: str) -> Iterator[str]:
        """What does not fit."""
        for what, number in (("features", features), ("classes", classes)):
            if getattr(self, what) != number:
                told = f"its records have {getattr(self, what)} {what}, not {number}"
                yield f"client {self.client}: {told}"
        if self.names and names and self.names != names:
            mine, right = (shown(text.replace("|", ", ")) for text in (self.names, names))
            yield f"client {self.client}: its classes are {mine}, and those of the run {right}"


class NodeError(Exception):
    """A node that can't take part, and why; `refuses` is the client whose owner says no."""

    def __init__(self, reason: str, *, refuses: int | None = None) -> None:
        super().__init__(reason)
        self.refuses = refuses


def read_member(
    values: Mapping[str, Any], clients: int, max_records: int, max_features: int
) -> Member:
    """What a node says about itself, if these are possible numbers."""
    if values["owner"] is not True:
        return Member(owner=False)
    i = values["client"]
    if type(i) is not int or not 0 <= i < clients:
        raise NodeError(
            f"client {shown(i)}: there are {clients} clients, numbered from 0; "
            "set partition.clients, or the node's number"
        )
    limits = {"size": max_records, "features": max_features, "classes": 1_000_000}
    for what, most in limits.items():
        said = values[what]
        if type(said) is not int or not 1 <= said <= most:
            raise NodeError(f"client {i}: {what}={shown(said)}: must be a number from 1 to {most}")
    size, features, classes = (values[what] for what in limits)
    key, peers = (str(values.get(what, ""))[:LONGEST_KEY] for what in ("key", "peers"))
    return Member(True, i, size, features, classes, key, peers, _names(i, values))


def _names(client: int, values: Mapping[str, Any]) -> str:
    """The classes' names, if they can be names, and are as many."""
    names = values.get("names", "")
    try:
        good = names == "" or len(checked_names(names.split("|"))) == values["classes"]
    except ConfigError:
        good = False
    if not good:
        raise NodeError(f"client {client}: names={shown(names)}: not the names of its classes")
    return str(names)
