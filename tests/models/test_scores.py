"""Scores beyond accuracy, against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references import reference

from fedsofim.models.scores import BINS, auc, calibrate, judge, probabilities

metrics = reference("sklearn.metrics")
calibration = reference("sklearn.calibration")


def problem(seed, n, K, coarse):
    """Logits and labels in which every class occurs; coarse ones have ties."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(K), rng.integers(K, size=n)])
    z = rng.normal(size=(len(labels), K)) + 1.5 * np.eye(K)[labels]
    return (np.round(z) if coarse else z).astype(np.float32), labels


problems = st.builds(
    problem, st.integers(0, 10**6), st.integers(1, 300), st.integers(2, 12), st.booleans()
)


@settings(deadline=None)
@given(problems)
def test_accuracies_and_loss_are_those_of_scikit_learn(made):
    z, labels = made
    seen, predicted = judge(z, labels), z.argmax(axis=1)
    assert seen.accuracy == pytest.approx(metrics.accuracy_score(labels, predicted))
    balanced = metrics.balanced_accuracy_score(labels, predicted)
    assert seen.balanced_accuracy == pytest.approx(balanced)
    recalls = metrics.recall_score(labels, predicted, average=None, zero_division=0)
    np.testing.assert_allclose(seen.by_class, recalls)
    p = probabilities(z.astype(np.float64))
    assert seen.loss == pytest.approx(metrics.log_loss(labels, p), rel=1e-4)


@settings(deadline=None)
@given(problems)
def test_areas_under_curves_are_those_of_scikit_learn(made):
    z, labels = made
    p = probabilities(z.astype(np.float64))
    for k, area in enumerate(auc(p, labels)):
        assert area == pytest.approx(metrics.roc_auc_score(labels == k, p[:, k]))
    if p.shape[1] > 2:
        macro = metrics.roc_auc_score(labels, p, multi_class="ovr", average="macro")
        assert auc(p, labels).mean() == pytest.approx(macro)


@settings(deadline=None)
@given(problems)
def test_the_calibration_error_is_that_of_scikit_learns_curve(made):
    z, labels = made
    p = probabilities(z.astype(np.float64))
    confidence, right = p.max(axis=1), p.argmax(axis=1) == labels
    ours = calibrate(confidence, right)
    accuracy, mean = calibration.calibration_curve(right, confidence, n_bins=BINS)
    filled = ours.records > 0
    np.testing.assert_allclose((ours.correct[filled] / ours.records[filled]), accuracy)
    np.testing.assert_allclose((ours.confidence[filled] / ours.records[filled]), mean)
    weights = ours.records[filled] / len(labels)
    assert ours.error == pytest.approx((weights * np.abs(accuracy - mean)).sum())
    assert judge(z, labels).calibration.error == pytest.approx(ours.error, abs=0.02)


def test_who_is_sure_and_wrong_is_badly_calibrated_and_who_is_right_is_not():
    labels = np.array([0, 1, 2, 0])
    sure = 50 * np.eye(3)[labels]
    assert judge(sure, labels).calibration.error == pytest.approx(0, abs=1e-9)
    assert judge(np.roll(sure, 1, axis=1), labels).calibration.error == pytest.approx(1)


def test_a_class_without_records_counts_nowhere():
    z = np.array([[3.0, 0.0, 0.0], [0.0, 1.0, 2.0]])
    seen = judge(z, np.array([0, 1]))
    assert seen.by_class.tolist()[:2] == [1.0, 0.0]
    assert np.isnan(seen.by_class[2])
    assert seen.balanced_accuracy == 0.5
    assert np.isnan(auc(z, np.array([0, 1]))[2])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_model_that_diverged_is_judged_and_not_praised():
    seen = judge(np.full((4, 3), np.nan), np.array([0, 1, 2, 2]))
    assert np.isnan(seen.loss)
    assert np.isnan(seen.calibration.error)
    assert np.isnan(auc(np.full((4, 3), np.nan), np.array([0, 1, 2, 2]))).all()
