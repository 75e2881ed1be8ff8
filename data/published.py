"""The division of records that the paper's Appendix I prints, client by client."""

import csv
from dataclasses import dataclass

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.shipped import shipped
from fedsofim.data.partition import Division


def published_counts(dataset: str) -> Array:
    """The paper's records of each class at each client, `(n, K)`: Tables 13 and 14."""
    with open(shipped("data/paper") / "partition.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] == dataset]
    classes = [key for key in rows[0] if key.startswith("class_") and rows[0][key]]
    return np.array([[int(row[key]) for key in classes] for row in rows])


@dataclass(frozen=True, kw_only=True)
class Published(Division):
    """As many records of each class as the paper's clients hold; the seed says which ones.

    It is for CIFAR-10 and PathMNIST: `partition=fedsofim.data.published:Published`.
    """

    clients: int = 20

    def owners(
        self, labels: Array, classes: int, rng: np.random.Generator, client_id: Array | None
    ) -> Array:
        sizes = np.bincount(labels, minlength=classes)
        tables = (published_counts(name) for name in ("cifar10", "pathmnist"))
        counts = next((c for c in tables if np.array_equal(c.sum(axis=0), sizes)), None)
        require(
            counts is not None and self.clients == len(counts),
            "partition: the paper's counts are of 20 clients, and of all training records of "
            "CIFAR-10 or PathMNIST",
        )
        assert counts is not None
        owner, order = np.empty(len(labels), np.intp), rng.permutation(len(labels))
        for k in range(classes):
            owner[order[labels[order] == k]] = np.repeat(np.arange(self.clients), counts[:, k])
        return owner
