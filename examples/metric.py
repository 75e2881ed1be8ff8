"""A metric of your own: it adds to the rows of metrics.jsonl and to summary.json.

fedsofim run metric=metric:Recall
"""

from dataclasses import dataclass

import numpy as np
from fedsofim.core.arrays import Array
from fedsofim.models.metrics import Metric


@dataclass(frozen=True, kw_only=True)
class Recall(Metric):
    """How much of each class is found: the mean over classes, and the worst."""

    def measure(self, labels: Array, predicted: Array) -> dict[str, float]:
        found = [np.mean(predicted[labels == k] == k) for k in np.unique(labels)]
        return {"recall_mean": float(np.mean(found)), "recall_worst": float(np.min(found))}
