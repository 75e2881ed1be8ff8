"""Divisions by the partitioners of Flower Datasets: `partition=flwr:dirichlet`.

Records are shuffled and then divided, as `FederatedDataset` does it, so `partition.seed=42` gives
what Flower's own defaults give for the same records in the same order.
"""

import inspect
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, options, require
from fedsofim.core.rng import Purpose, stream
from fedsofim.data.partition import Division
from fedsofim.data.vision import optional

PREFIX = "flwr:"
LABEL, CLIENT, RECORD = "label", "client", "record"  # the columns that a partitioner is shown
OTHERS = {
    "vertical-even": "divides columns, and not records",
    "vertical-size": "divides columns, and not records",
    "id-to-size-fnc": "takes a function, which a config cannot hold",
}


@dataclass(frozen=True, kw_only=True)
class FlowerDivision(Division):
    """A partitioner of Flower Datasets, by name: `flwr:dirichlet` is its DirichletPartitioner.

    Attributes:
        kind: `flwr:` and its name.
        seed: of the shuffle before it, and of the partitioner; by default from the run's.
        args: its arguments, by its own names; `num_partitions` is `clients`, and `partition_by` is
            `label` or `client`.
    """

    kind: str
    seed: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        lacks = ", ".join(f"args.{name}" for name, value in self.args.items() if value == "???")
        require(not lacks, f"{lacks}: a value is missing")

    @property
    def name(self) -> str:
        return self.kind

    def owners(
        self, labels: Array, classes: int, rng: np.random.Generator, client_id: Array | None
    ) -> Array:
        """The client of each record, and -1 where the partitioner gives it to nobody."""
        seed = int(rng.integers(1 << 32)) if self.seed is None else self.seed
        columns = {LABEL: labels.tolist(), RECORD: list(range(len(labels)))}
        if client_id is not None:
            columns[CLIENT] = client_id.tolist()
        owner = np.full(len(labels), -1, np.intp)
        with _in_one_line(self.kind):
            made = _made(self.kind, self.clients, self.args, columns, seed)
            found = made.num_partitions
            require(found == self.clients, f"makes {found} clients, not {self.clients}")
            for client in range(found):
                records = np.array(made.load_partition(client)[RECORD][:], np.intp)
                require(bool((owner[records] < 0).all()), "gives a record to several clients")
                owner[records] = client
        return owner

    def split(
        self, labels: Array, classes: int, seed: int, client_id: Array | None = None
    ) -> list[Array]:
        """As any division's; but some partitioners, such as `shard`, leave records over."""
        owner = self.owners(labels, classes, stream(seed, Purpose.PARTITION), client_id)
        parts = [np.flatnonzero(owner == client) for client in range(self.clients)]
        empty = [i for i, part in enumerate(parts) if not len(part)]
        require(not empty, f"partition={self.kind}: gives no records to clients {empty}")
        return parts


def is_flower(name: object) -> bool:
    """Whether a name is that of a partitioner of Flower Datasets."""
    return isinstance(name, str) and name.startswith(PREFIX)


def section(kind: str) -> dict[str, Any]:
    """The keys of a partitioner, with their defaults; `???` is Hydra's way to ask for a value."""
    known = inspect.signature(_partitioner(kind)).parameters
    args = {n: "???" if p.default is p.empty else p.default for n, p in known.items()}
    counted = args.pop("num_partitions", None) is None
    if "partition_by" in args:
        args["partition_by"] = CLIENT if "natural" in kind.lower() else LABEL
    if "seed" in args:
        args["seed"] = None  # the division's
    return {"kind": kind, "clients": None if counted else 20, "seed": None, "args": args}


def client_count(kind: str, args: Mapping[str, Any], owners: Callable[[], int]) -> int:
    """How many clients a partitioner makes that is not told.

    Args:
        kind: which.
        args: its arguments.
        owners: counts those whom the data name.
    """
    sizes = args.get("partition_sizes")
    if isinstance(sizes, list):
        return len(sizes)
    known = args.get("partition_by") == CLIENT
    require(known, f"partition.clients: say how many clients partition={kind} makes")
    with _in_one_line(kind):
        return int(_made(kind, None, args, {CLIENT: list(range(owners()))}, 0).num_partitions)


def _partitioner(kind: str) -> type[Any]:
    """The class with this name, written as here or as Flower does."""
    library = optional("flwr_datasets.partitioner", f"partition={kind} needs", "hf")
    known = {_short(name): name for name in library.__all__ if name != "Partitioner"}
    wanted = _short(kind.removeprefix(PREFIX))
    require(wanted not in OTHERS, f"partition={kind}: {OTHERS.get(wanted)}")
    right = options((name for name in known if name not in OTHERS), wanted)
    require(wanted in known, f"partition={kind}: unknown; {right}")
    found: type[Any] = getattr(library, known[wanted])
    return found


def _short(name: str) -> str:
    """What a partitioner is called here.

    >>> _short("GroupedNaturalIdPartitioner"), _short("inner_dirichlet")
    ('grouped-natural-id', 'inner-dirichlet')
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name.removesuffix("Partitioner"))
    return words.replace("_", "-").lower()


def _made(
    kind: str,
    clients: int | None,
    args: Mapping[str, Any],
    columns: Mapping[str, list[Any]],
    seed: int,
) -> Any:
    """The partitioner with its arguments and the records, shuffled."""
    cls = _partitioner(kind)
    by = args.get("partition_by")
    told = "the data do not say whose each record is" if by == CLIENT else "choose label or client"
    require(by is None or by in columns, f"args.partition_by={by}: {told}")
    given = dict(args)
    if "num_partitions" in inspect.signature(cls).parameters:
        given["num_partitions"] = clients
    if "seed" in given and given["seed"] is None:
        given["seed"] = seed
    if "distribution_array" in given:
        given["distribution_array"] = np.asarray(given["distribution_array"])
    made = cls(**given)
    made.dataset = optional("datasets").Dataset.from_dict(dict(columns)).shuffle(seed=seed)
    return made


@contextmanager
def _in_one_line(kind: str) -> Iterator[None]:
    """Without bars and warnings; what is wrong is told in one line."""
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ConfigError as error:
        told = str(error)
        named = told.startswith("partition")
        raise ConfigError(told if named else f"partition={kind}: {told}") from None
    except Exception as error:  # another's code can fail in any way
        told = " ".join(str(error).split())[:300]
        raise ConfigError(f"partition={kind}: {told}") from None
