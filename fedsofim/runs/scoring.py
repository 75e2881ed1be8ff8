"""How well the final model does: by class, by confidence, and for each client of a simulation.

The first two need a test set alone, so a deployed server with its own has them as well. The last
needs to know which classes each client holds: it is the simulator's knowledge, and no epsilon
covers it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.models.scores import BINS, Calibration, Judged, auc, judge, probabilities
from fedsofim.runs import personal_tests as personal
from fedsofim.runs.directory import Row, finite
from fedsofim.runs.experiment import Experiment

Own = Mapping[int, Array]


class Final(NamedTuple):
    """The scores of a finished run.

    Attributes:
        seen: accuracies, loss and calibration on the test set; where clients have models of their
            own, on all of their test sets together.
        auc: of each class against all others, `(K,)`.
        clients: one row a client of a simulation, scored with the server's model on test records in
            the client's own class proportions; empty where clients have models of their own.
    """

    seen: Judged
    auc: Array
    clients: list[Row]

    def summary(self) -> Row:
        """In a few numbers."""
        return self.public() | self.by_client()

    def public(self) -> Row:
        """What the test set alone tells."""
        return {
            "balanced_accuracy": finite(self.seen.balanced_accuracy),
            "auc": _mean(self.auc),
            "calibration_error": finite(self.seen.calibration.error),
        }

    def by_client(self) -> Row:
        """What only a simulator knows, and no epsilon covers."""
        if not self.clients:
            return {}
        accuracy = np.array([row["accuracy"] for row in self.clients])
        return {
            "client_accuracy": float(accuracy.mean()),
            "client_accuracy_worst_decile": personal.worst_decile(accuracy),
        }

    def table(self, names: Sequence[object] = ()) -> Row:
        """In full, without the clients.

        Args:
            names: what the classes are called, if that is known.
        """
        columns = zip(self.seen.records.tolist(), self.seen.by_class, self.auc, strict=True)
        classes: list[Row] = [
            {"class": k, "records": n, "accuracy": finite(float(a)), "auc": finite(float(area))}
            for k, (n, a, area) in enumerate(columns)
        ]
        for row, name in zip(classes, names, strict=False):
            row["name"] = name
        bins = list(_bins(self.seen.calibration))
        few = {"accuracy": self.seen.accuracy, **self.public()}
        return few | {"classes": classes, "calibration": bins}


def score(experiment: Experiment, models: Array, own: Own | None = None) -> Final | None:
    """Score the final model, or each client's own; `None` without a test set.

    The areas under the curves need every class's probabilities sorted, which would take as long as
    a round: they are computed here, after the last, and not for every row.

    Args:
        experiment: the run.
        models: the server's model, or each client's own, `(n, K, F+1)`, where there are tests for
            them.
        own: what `own_tests` gives, if it is known already.
    """
    test, tests = experiment.test, experiment.own_tests
    with np.errstate(over="ignore", invalid="ignore"):  # it may have diverged
        if tests:
            z = np.concatenate([t.logits(theta) for t, theta in zip(tests, models, strict=True)])
            labels = np.concatenate([own.labels for own in tests])
        elif test.size and not experiment.config.client.keeps_models:
            z, labels = test.logits(models), test.labels
        else:
            return None
        clients: list[Row] = []
        if not tests:
            drawn = own_tests(experiment) if own is None else own
            clients = _clients(experiment, drawn, z.argmax(axis=1) == labels)
        return Final(judge(z, labels), auc(probabilities(z), labels), clients)


def own_tests(experiment: Experiment) -> Own:
    """The test records in each client's class proportions, by client, where these are known."""
    counts = experiment.partition.get("counts")
    if counts is None or not experiment.test.size:
        return {}  # a deployment, whose owners alone know
    held = np.array(counts)
    present = np.bincount(experiment.test.labels, minlength=held.shape[1]) > 0
    met = np.flatnonzero(held @ present)  # the others hold no class of the test set
    drawn = personal.own_test_sets(experiment.test, held[met], experiment.config.seed)
    return dict(zip(met.tolist(), drawn.chosen, strict=True))


def _clients(experiment: Experiment, own: Own, right: Array) -> list[Row]:
    """Each client's accuracy, from which test records were predicted right, `(N,)`."""
    partition = experiment.partition
    return [
        {
            "client": i,
            "records": partition["sizes"][i],
            "classes": sum(count > 0 for count in partition["counts"][i]),
            "test_records": len(records),
            "accuracy": float(right[records].mean()),
        }
        for i, records in own.items()
    ]


def _bins(calibration: Calibration) -> Iterator[Row]:
    for b, (n, confidence, correct) in enumerate(zip(*calibration, strict=True)):
        yield {
            "from": round(b / BINS, 6),
            "to": round((b + 1) / BINS, 6),
            "records": int(n),
            "confidence": finite(float(confidence / n)) if n else None,
            "accuracy": float(correct / n) if n else None,
        }


def _mean(values: Array) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) and math.isfinite(known.mean()) else None
