"""How records are divided among clients."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.rng import Purpose, stream
from fedsofim.data.published import published_owners
from fedsofim.models.coded import blocks

# A client holds at least this share of the mean client's records unless `min_size` says otherwise:
# 800 of CIFAR-10's records with 20 clients.
MIN_SHARE = 0.32
SORTED = 1 << 16  # records sorted by their owner at a time
Kind = Literal["iid", "dirichlet", "classes", "powerlaw", "natural", "published"]


@dataclass(frozen=True, kw_only=True)
class Division(ABC):
    """A division of the training records among clients; each record goes to one of them.

    Attributes:
        clients: how many clients, n.
    """

    clients: int

    def __post_init__(self) -> None:
        require(self.clients >= 1, f"clients={self.clients}: must be at least 1")

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return type(self).__name__

    @abstractmethod
    def owners(
        self, labels: Array, classes: int, rng: np.random.Generator, client_id: Array | None
    ) -> Array:
        """The client, from 0 to n - 1, that each record goes to, `(N,)`.

        Args:
            labels: of all records, `(N,)`.
            classes: how many classes there are.
            rng: what to draw from; the same for the same seed, on every machine.
            client_id: whose each record is, `(N,)`, where the data say so.
        """

    def split(
        self, labels: Array, classes: int, seed: int, client_id: Array | None = None
    ) -> list[Array]:
        """The records of each client, as sorted indices into `labels`; each record goes once.

        Args:
            labels: of all records, `(N,)`.
            classes: how many classes there are.
            seed: of the draw.
            client_id: whose each record is, `(N,)`, where the data say so.
        """
        owner = np.asarray(self.owners(labels, classes, stream(seed, Purpose.PARTITION), client_id))
        name, n = type(self).__name__, self.clients
        require(
            owner.shape == labels.shape and owner.dtype.kind in "iu",
            f"partition={name}: owners are {owner.dtype} {owner.shape}; there must be a whole "
            f"number for each of the {len(labels)} records",
        )
        inside = bool(((owner >= 0) & (owner < n)).all())
        require(inside, f"partition={name}: owners must be from 0 to {n - 1}")
        parts = _group(owner, n)
        empty = [i for i, part in enumerate(parts) if not len(part)]
        require(not empty, f"partition={name}: gives no records to clients {empty}")
        return parts


@dataclass(frozen=True, kw_only=True)
class Partition(Division):
    r"""The divisions that come with the project.

    Attributes:
        kind: `iid`; `dirichlet`, in which each class is spread over the clients by a Dirichlet
            draw; `classes`, in which each client holds records of a few classes only; `powerlaw`,
            in which records are dealt out at random and sizes fall as a power of the client's
            number, $n_i = N\,i^{-a} / \sum_j j^{-a}$ for $i = 1 \dots n$; `natural`, in which the
            data say whose each record is; clients are then numbered in the order of their ids;
            `published`, in which clients hold what the paper's Tables 13 and 14 say.
        alpha: concentration of the Dirichlet draw; small is uneven.
        classes_per_client: for `classes`.
        exponent: $a$ of `powerlaw`; 0 makes all clients equally large.
        min_size: the fewest records of a client, taken from the largest clients where the draw or
            the law gives less; by default 0.32 of the mean for `dirichlet`, else 1.
    """

    kind: Kind
    alpha: float = 0.5
    classes_per_client: int = 2
    exponent: float = 1.0
    min_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.alpha < math.inf, f"alpha={self.alpha}: must be a finite number > 0")
        require(self.alpha <= 1e9, f"alpha={self.alpha}: at most 1e9, which is even")
        require(
            self.classes_per_client >= 1,
            f"classes_per_client={self.classes_per_client}: must be at least 1",
        )
        require(
            self.min_size is None or self.min_size >= 1,
            f"min_size={self.min_size}: must be at least 1",
        )
        require(
            0 <= self.exponent < math.inf, f"exponent={self.exponent}: must be a finite number >= 0"
        )

    @property
    def name(self) -> str:
        return self.kind

    def owners(
        self, labels: Array, classes: int, rng: np.random.Generator, client_id: Array | None
    ) -> Array:
        if self.kind == "natural":
            return self._by_owner(client_id)
        n = self.clients
        require(
            n <= len(labels), f"partition.clients={n}: more clients than the {len(labels)} records"
        )
        # Of a million records, numbers that are as small as can be take an eighth of the memory.
        owner = np.empty(len(labels), np.min_scalar_type(n - 1))
        order = rng.permutation(len(labels))
        if self.kind == "published":
            return published_owners(labels, classes, n, order)
        if self.kind == "iid":
            owner[order] = np.resize(np.arange(n, dtype=owner.dtype), len(labels))
            return owner
        if self.kind == "powerlaw":
            law = np.arange(1.0, n + 1) ** -self.exponent
            owner[order] = np.repeat(np.arange(n), _apportion(law, len(labels)))
            self._top_up(owner, order)
            return owner
        shares = self._shares(rng, classes)
        for k in range(classes):
            records = order[labels[order] == k]
            owner[records] = np.repeat(np.arange(n), _apportion(shares[k], len(records)))
        self._top_up(owner, order)
        return owner

    def _by_owner(self, client_id: Array | None) -> Array:
        if client_id is None:
            raise ConfigError("partition=natural: the data do not say whose each record is")
        names, owner = np.unique(client_id, return_inverse=True)
        require(
            len(names) == self.clients,
            f"partition.clients={self.clients}: the data name {len(names)} clients",
        )
        return np.asarray(owner)

    def _shares(self, rng: np.random.Generator, classes: int) -> Array:
        """The share of each class that each client holds, `(K, n)`; rows sum to 1."""
        n = self.clients
        if self.kind == "dirichlet":
            return rng.dirichlet(np.full(n, self.alpha), size=classes)
        s = self.classes_per_client
        require(s <= classes, f"partition.classes_per_client={s}: there are only {classes} classes")
        require(
            n * s >= classes,
            f"partition.classes_per_client={s}: {n} clients with {s} each can't hold all "
            f"{classes} classes",
        )
        # Each client draws s classes among those that the fewest clients hold so far.
        holds, holders = np.zeros((classes, n)), np.zeros(classes)
        for client in range(n):
            chosen = np.lexsort((rng.random(classes), holders))[:s]
            holds[chosen, client] = 1
            holders[chosen] += 1
        return np.asarray(holds / holds.sum(axis=1, keepdims=True))

    def _top_up(self, owner: Array, order: Array) -> None:
        """Give every client its least number of records, taken one by one from the largest."""
        sizes = _sizes(owner, self.clients)
        mean = len(owner) / self.clients
        if self.min_size is not None:
            least = self.min_size
        else:
            least = max(1, math.floor(MIN_SHARE * mean)) if self.kind == "dirichlet" else 1
        require(
            least * self.clients <= len(owner),
            f"partition.min_size={least}: {self.clients} clients would need "
            f"{least * self.clients} records, there are {len(owner)}",
        )
        if sizes.min() >= least:
            return
        # Donors, the largest first, fall to a common level that frees what is missing.
        missing = int(np.maximum(least - sizes, 0).sum())
        level = _water_level(sizes, missing)
        give = np.maximum(sizes - level, 0)
        give[np.flatnonzero(give)[: give.sum() - missing]] -= 1  # fewer than there are donors
        given = zip(_group(owner[order], self.clients), give, strict=True)
        moved = order[np.concatenate([of_one[:count] for of_one, count in given])]
        owner[moved] = np.repeat(np.arange(self.clients), np.maximum(least - sizes, 0))


def _sizes(owner: Array, clients: int) -> Array:
    """How many records each owner has; NumPy would make 8 bytes of each to count them."""
    counts = (np.bincount(owner[block], minlength=clients) for block in blocks(len(owner), SORTED))
    return np.asarray(sum(counts, np.zeros(clients, np.intp)))


def _group(owner: Array, clients: int) -> list[Array]:
    """The records of each owner, in order; a block at a time, or sorting would take most memory."""
    ends = np.cumsum(_sizes(owner, clients))
    records = np.empty(len(owner), np.int32 if len(owner) < 2**31 else np.intp)
    free = ends - np.diff(ends, prepend=0)  # where the next record of each goes
    for block in blocks(len(owner), SORTED):
        some = owner[block]
        order, counts = np.argsort(some, kind="stable"), np.bincount(some, minlength=clients)
        first = free - (np.cumsum(counts) - counts)
        records[first[some[order]] + np.arange(len(some))] = order + block.start
        free += counts
    return np.split(records, ends[:-1])


def _apportion(shares: Array, total: int) -> Array:
    """Whole numbers in proportion to `shares` that add up to `total`."""
    edges = np.rint(np.cumsum(shares) / shares.sum() * total).astype(np.intp)
    return np.diff(edges, prepend=0)


def _water_level(sizes: Array, missing: int) -> int:
    """The highest size to which clients can be cut so that at least `missing` records are freed."""
    low, high = 0, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.maximum(sizes - middle, 0).sum()) >= missing:
            low = middle
        else:
            high = middle - 1
    return low


def statistics(parts: list[Array], labels: Array, classes: int) -> dict[str, Any]:
    """What the paper reports of a partition (Appendix I), as plain numbers.

    `kl` is the divergence of a client's class proportions from uniform, in nats.
    """
    counts = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
    sizes = counts.sum(axis=1)
    p = counts / np.maximum(sizes, 1)[:, None]
    kl = np.where(p > 0, p * np.log(np.where(p > 0, p, 1) * classes), 0).sum(axis=1)
    absent = (counts == 0).sum(axis=1)
    return {
        "clients": len(parts),
        "sizes": sizes.tolist(),
        "counts": counts.tolist(),
        "kl": kl.round(6).tolist(),
        "absent": absent.tolist(),
        "size_mean": float(sizes.mean()),
        "size_std": float(sizes.std()),
        "kl_mean": float(kl.mean()),
        "absent_mean": float(absent.mean()),
    }


def table(statistics: Mapping[str, Any]) -> str:
    """The counts of each class at each client, as CSV (the paper's tables of Appendix I)."""
    numbered = [f"class_{k}" for k in range(len(statistics["counts"][0]))]
    named = statistics.get("classes") or numbered
    lines: list[list[object]] = [["client", "records", *named, "kl", "absent"]]
    columns = zip(*(statistics[name] for name in ("sizes", "counts", "kl", "absent")), strict=True)
    for client, (size, counts, kl, absent) in enumerate(columns):
        lines.append([client, size, *counts, kl, absent])
    return "".join(",".join(map(str, line)) + "\n" for line in lines)
