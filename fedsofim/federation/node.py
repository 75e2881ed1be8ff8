"""What the owner of some records decides, and nobody else: its node's config."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedsofim.config.build import build
from fedsofim.core.errors import ConfigError, require
from fedsofim.data.classes import Classes
from fedsofim.data.owned import Records, open_records
from fedsofim.federation.owner import clean
from fedsofim.federation.peers import Peers, public_line, read_peers
from fedsofim.privacy.ledger import NAME, Budget, Ledger
from fedsofim.privacy.policy import Policy

# The SuperNode's private key, in the client's own directory; the public one is beside it.
KEY = "client"


@dataclass(frozen=True, kw_only=True)
class Node:
    """What an owner decides, in its SuperNode's `--node-config`.

    Attributes:
        partition_id: its number among the clients, from 0.
        data: its `.npz` file.
        classes: how many classes its labels may be of. What the server's model has is compared
            with this, never with the labels.
        names: what these classes are called, with bars between, if their owners agreed on names;
            the server is told, and a run with other ones is refused.
        state: its own directory for the ledger and all that must last.
        epsilon: what it allows about one record, over all runs together.
        delta: of that budget.
        adjacency: of that budget.
        policy: a TOML file of rules beside the budget; by default those of `Policy`.
        peers: a file of all clients' public keys; without it nothing is added to common sums.
        honest: how many of the others its owner takes for honest; 0 leaves it to the policy.
        num_partitions: not used; Flower's examples set it.
    """

    partition_id: int
    data: str
    classes: int
    state: str
    epsilon: float
    delta: float
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    names: str = ""
    policy: str = ""
    peers: str = ""
    honest: int = 0
    num_partitions: int = 0

    def __post_init__(self) -> None:
        require(self.partition_id >= 0, f"id={self.partition_id}: clients are numbered from 0")
        named = self.agreed()
        require(
            named.count == self.classes,
            f"classes={self.classes}: the names {named} are {named.count}",
        )
        require(self.honest >= 0, f"honest={self.honest}: must be >= 0")
        for path in (self.data, self.state, self.policy, self.peers):
            require('"' not in path and "'" not in path, f"{path}: has a quote in its name")
            require(path.isprintable(), f"{path!r}: has a line break or the like in its name")
        self.budget()

    def agreed(self) -> Classes:
        """The classes that all owners agreed on."""
        return Classes.of(self.names.split("|") if self.names else self.classes)

    def budget(self) -> Budget:
        """What it allows."""
        return Budget(epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency)

    def rules(self) -> Policy:
        """What else it asks for."""
        policy = self._policy()
        return replace(policy, honest=self.honest) if self.honest else policy

    def _policy(self) -> Policy:
        if not self.policy:
            return Policy()
        try:
            return build(Policy, tomllib.loads(Path(self.policy).read_text("utf-8")), "policy")
        except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{self.policy}: not a readable TOML file ({error})") from None

    def pinned(self) -> Peers | None:
        """All clients' keys as this owner knows them, its own among them; `None` without a file."""
        if not self.peers:
            return None
        peers, mine = read_peers(Path(self.peers)), self.partition_id
        own = (Path(self.state) / KEY).with_suffix(".pub")
        require(
            peers.keys.get(mine) == public_line(own),
            f"{self.peers}: client {mine} has another key there than {own}",
        )
        return peers

    def check_peers(self) -> Peers | None:
        """Refuse others to count on that nobody can tell apart from made-up ones."""
        peers, honest = self.pinned(), self.rules().honest
        others = len(peers.keys) - 1 if peers else 0
        require(
            honest <= others,
            f"honest={honest}: --peers names {others} others; give a file of all clients' keys",
        )
        return peers

    def ledger(self, records: Records) -> Ledger:
        """The owner's account of these records."""
        path = Path(self.state) / NAME
        return Ledger(path, self.budget(), data=records.digest, policy=self.rules())

    def start(self) -> Records:
        """Check all of it, every line of the ledger, too, and clear what a crash left behind."""
        self.rules()
        records = self.records()
        ledger = self.ledger(records)
        ledger.start()
        clean(Path(self.state), ledger)
        return records

    def records(self) -> Records:
        """The owner's records, checked."""
        return open_records(Path(self.data), Path(self.state), self.agreed())

    def text(self) -> str:
        """All of it, as Flower takes it."""
        texts = {"data": self.data, "state": self.state, "adjacency": self.adjacency}
        texts |= {"policy": self.policy} if self.policy else {}
        texts |= {"peers": self.peers} if self.peers else {}
        texts |= {"names": self.names} if self.names else {}
        # Flower reads TOML, in which a backslash begins an escape.
        safe = {key: value.replace("\\", "\\\\") for key, value in texts.items()}
        quoted = " ".join(f'{key}="{value}"' for key, value in safe.items())
        budget = f"epsilon={self.epsilon!r} delta={self.delta!r}"
        own = f"partition-id={self.partition_id} classes={self.classes} honest={self.honest}"
        return f"{own} {budget} {quoted}"
