"""How well each client is served by its own model.

A client is scored on test records drawn with its own class proportions. In a simulation this is
the simulator's knowledge; in a deployment such a score would be a release, and is never sent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.core.rng import Purpose, stream
from fedsofim.models.records import Records

# A client's test set has at most this many records.
LIMIT = 1000


def class_counts(available: Array, wanted: Array, limit: int = LIMIT) -> Array:
    """How many test records of each class a client gets: the most in its own proportions.

    Args:
        available: test records of each class, `(K,)`.
        wanted: the client's training records of each class, `(K,)`; classes without test records
            are left out.
        limit: the most test records.

    >>> class_counts(np.array([100, 100, 0]), np.array([30, 10, 5]))
    array([100,  33,   0])
    """
    p = np.where(available > 0, wanted, 0).astype(np.float64)
    require(p.sum() > 0, "a client's classes are all missing from the test set")
    p /= p.sum()
    held = p > 0
    total = min(limit, float((available[held] / p[held]).min()))
    return np.asarray(np.floor(p * total + 1e-9).astype(np.intp))


@dataclass(frozen=True)
class OwnTests(Sequence[Records]):
    """A test set for each client, copied only while it is used: images would fill the memory.

    Attributes:
        test: all test records.
        chosen: which of them each client is scored on, sorted.
    """

    test: Records
    chosen: Sequence[Array]

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, i: Any) -> Any:
        return self.test.part(self.chosen[i])


def own_test_sets(test: Records, counts: Array, seed: int) -> OwnTests:
    """A test set for each client, drawn from `test` with the class proportions it trains on.

    Within a client no record is drawn twice; clients may share records.

    Args:
        test: all test records.
        counts: each client's training records of each class, `(n, K)`.
        seed: of the draw.
    """
    labels = test.labels
    of_class = [np.flatnonzero(labels == k) for k in range(counts.shape[1])]
    available = np.array([len(records) for records in of_class])
    chosen = []
    for i, held in enumerate(counts):
        rng = stream(seed, Purpose.PERSONAL_TEST, i)
        wanted = class_counts(available, held)
        drawn = [rng.permutation(r)[:count] for r, count in zip(of_class, wanted, strict=True)]
        chosen.append(np.sort(np.concatenate(drawn)))
    return OwnTests(test, chosen)


class Scores(NamedTuple):
    """Each client's accuracy and mean loss on its own test set, both `(n,)`."""

    accuracy: Array
    loss: Array


def score(models: Array, tests: Sequence[Records]) -> Scores:
    """Score each client's model, `(n, K, F+1)`, on its own test set."""
    pairs = [test.evaluate(theta) for theta, test in zip(models, tests, strict=True)]
    return Scores(*np.array(pairs).T)


def summarise(scores: Scores) -> dict[str, float]:
    """What a round's row says: the mean client, the spread, and the worst tenth's mean."""
    worst = np.sort(scores.accuracy)[: math.ceil(len(scores.accuracy) / 10)]
    return {
        "accuracy": float(scores.accuracy.mean()),
        "loss": float(scores.loss.mean()),
        "accuracy_std": float(scores.accuracy.std()),
        "accuracy_worst_decile": float(worst.mean()),
    }


def table(scores: Scores, partition: Mapping[str, Any], tests: Sequence[Records]) -> list[Any]:
    """One row a client: what it holds, and how well its own model does."""
    return [
        {
            "client": i,
            "records": partition["sizes"][i],
            "classes": sum(count > 0 for count in partition["counts"][i]),
            "test_records": tests[i].size,
            "accuracy": float(scores.accuracy[i]),
            "loss": float(scores.loss[i]) if math.isfinite(scores.loss[i]) else None,
        }
        for i in range(len(tests))
    ]
