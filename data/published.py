"""The division of records that the paper's Appendix I prints, client by client."""

import csv

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.shipped import shipped

NAMES = ("cifar10", "pathmnist")


def published_counts(dataset: str) -> Array:
    """The paper's records of each class at each client, `(n, K)`: Tables 13 and 14."""
    with open(shipped("data/paper") / "partition.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] == dataset]
    classes = [key for key in rows[0] if key.startswith("class_") and rows[0][key]]
    return np.array([[int(row[key]) for key in classes] for row in rows])


def published_owners(labels: Array, classes: int, clients: int, order: Array) -> Array:
    """The client of each record, `(N,)`: as many of each class as the paper's clients hold.

    Args:
        labels: of all records, `(N,)`.
        classes: how many classes there are.
        clients: how many clients.
        order: the records in the order in which they are given away.
    """
    sizes = np.bincount(labels, minlength=classes)
    tables = (published_counts(name) for name in NAMES)
    counts = next((c for c in tables if np.array_equal(c.sum(axis=0), sizes)), None)
    require(
        counts is not None and clients == len(counts),
        "partition=published: the paper's counts are of 20 clients, and of all training records of "
        "CIFAR-10 or PathMNIST",
    )
    assert counts is not None
    owner = np.empty(len(labels), np.intp)
    for k in range(classes):
        owner[order[labels[order] == k]] = np.repeat(np.arange(clients), counts[:, k])
    return owner
