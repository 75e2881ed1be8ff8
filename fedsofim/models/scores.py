"""How well a classifier does beyond its accuracy: by class, by rank, and by its own confidence."""

from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array

BINS = 15  # of confidence, as is usual since Guo et al. 2017


class Calibration(NamedTuple):
    """Records by the confidence of their prediction, in equal bins of (0, 1], all `(BINS,)`.

    Attributes:
        records: how many fell into the bin.
        confidence: the sum of the probabilities of what was predicted for them.
        correct: how many predictions were right.
    """

    records: Array
    confidence: Array
    correct: Array

    @property
    def error(self) -> float:
        """The expected calibration error: the mean over records of |accuracy - confidence|."""
        return float(np.abs(self.correct - self.confidence).sum() / self.records.sum())


class Judged(NamedTuple):
    """What one look at a test set tells.

    Attributes:
        loss: the mean cross-entropy.
        records: test records of each class, `(K,)`.
        correct: how many of them were predicted as what they are, `(K,)`.
        calibration: how sure the predictions were, and how right.
    """

    loss: float
    records: Array
    correct: Array
    calibration: Calibration

    @property
    def accuracy(self) -> float:
        """The part of all records that was predicted right."""
        return float(self.correct.sum() / self.records.sum())

    @property
    def by_class(self) -> Array:
        """The accuracy on the records of each class, `(K,)`; NaN for a class without any."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.correct / self.records)

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the classes' accuracies, so that each class counts the same."""
        return float(np.nanmean(self.by_class))


def judge(z: Array, labels: Array) -> Judged:
    """Judge logits by the true classes; cheap enough for every round.

    Args:
        z: logits, `(N, K)`.
        labels: true classes, `(N,)`.

    >>> seen = judge(np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1]))
    >>> round(seen.accuracy, 4), seen.by_class.tolist(), seen.balanced_accuracy
    (0.6667, [1.0, 0.5], 0.75)
    """
    every, K = np.arange(len(z)), z.shape[1]
    predicted = z.argmax(axis=1)
    top = z[every, predicted]
    s = np.exp(z - top[:, None]).sum(axis=1)
    right = predicted == labels
    loss = float((top + np.log(s) - z[every, labels]).sum()) / max(1, len(z))
    return Judged(
        loss,
        np.bincount(labels, minlength=K),
        np.bincount(labels[right], minlength=K),
        calibrate(1 / s, right),
    )


def calibrate(confidence: Array, right: Array) -> Calibration:
    """Collect predictions by their confidence, `(N,)`; bin b holds (b/15, (b+1)/15]."""
    bins = np.ceil(np.nan_to_num(confidence) * BINS).astype(np.intp).clip(1, BINS) - 1
    return Calibration(
        np.bincount(bins, minlength=BINS),
        np.bincount(bins, confidence, BINS),
        np.bincount(bins, right, BINS),
    )


def confusion(z: Array, labels: Array) -> Array:
    """Records by their true class and by the one that was predicted, `(K, K)`.

    >>> confusion(np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1])).tolist()
    [[1, 0], [1, 1]]
    """
    K = z.shape[1]
    return np.bincount(K * labels + z.argmax(axis=1), minlength=K * K).reshape(K, K)


def probabilities(z: Array) -> Array:
    """The softmax of logits `(N, K)`."""
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def auc(p: Array, labels: Array) -> Array:
    """The area under the ROC curve of each class against all others, `(K,)`.

    It is the chance that a record of the class is given a higher probability of it than a record of
    another class, ties counting half. NaN for a class that has no records, or all, and for scores
    that cannot be ranked.

    Args:
        p: probabilities, or any scores, `(N, K)`.
        labels: true classes, `(N,)`.

    >>> auc(np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4]]), np.array([0, 1, 1])).tolist()
    [1.0, 1.0]
    """
    areas = np.full(p.shape[1], np.nan)
    if np.isnan(p).any():
        return areas
    for k in range(p.shape[1]):
        inside = labels == k
        own, others = p[inside, k], np.sort(p[~inside, k])
        if len(own) and len(others):
            below = np.searchsorted(others, own, "left") + np.searchsorted(others, own, "right")
            areas[k] = below.mean() / 2 / len(others)
    return areas
