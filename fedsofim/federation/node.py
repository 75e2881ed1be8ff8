"""What the owner of some records decides, and nobody else: its node's config."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsofim.core.errors import require
from fedsofim.data.owned import Records, open_records
from fedsofim.privacy.ledger import Budget, Ledger


@dataclass(frozen=True, kw_only=True)
class Node:
    """What an owner decides, in its SuperNode's `--node-config`.

    Attributes:
        partition_id: its number among the clients, from 0.
        data: its `.npz` file.
        classes: how many classes its labels may be of. What the server's model has is compared
            with this, never with the labels.
        state: its own directory for the ledger and all that must last.
        epsilon: what it allows about one record, over all runs together.
        delta: of that budget.
        adjacency: of that budget.
        num_partitions: not used; Flower's examples set it.
    """

    partition_id: int
    data: str
    classes: int
    state: str
    epsilon: float
    delta: float
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    num_partitions: int = 0

    def __post_init__(self) -> None:
        require(self.partition_id >= 0, f"id={self.partition_id}: clients are numbered from 0")
        require(self.classes >= 2, f"classes={self.classes}: at least two classes are needed")
        for path in (self.data, self.state):
            require('"' not in path and "'" not in path, f"{path}: has a quote in its name")
        self.budget()

    def budget(self) -> Budget:
        """What it allows."""
        return Budget(epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency)

    def ledger(self) -> Ledger:
        """The owner's account."""
        return Ledger(Path(self.state) / "ledger.jsonl", self.budget())

    def records(self) -> Records:
        """The owner's records, checked."""
        return open_records(Path(self.data), Path(self.state), self.classes)

    def text(self) -> str:
        """All of it, as Flower takes it."""
        texts = {"data": self.data, "state": self.state, "adjacency": self.adjacency}
        quoted = " ".join(f'{key}="{value}"' for key, value in texts.items())
        budget = f"epsilon={self.epsilon!r} delta={self.delta!r}"
        return f"partition-id={self.partition_id} classes={self.classes} {budget} {quoted}"
