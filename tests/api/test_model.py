"""The model beside scikit-learn's own classifiers."""

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    accuracy_score,
    check_scoring,
    classification_report,
    log_loss,
    roc_auc_score,
)
from sklearn.utils.validation import check_is_fitted

import fedsofim
from fedsofim.core.errors import ConfigError

NAMES = np.array(["ape", "bee", "cat"])


@pytest.fixture
def trained(arrays):
    data = (
        *(arrays["train_x"], NAMES[arrays["train_y"]]),
        *(arrays["test_x"], NAMES[arrays["test_y"]]),
    )
    return fedsofim.run(data=data, clients=4, rounds=20, privacy="none")


def test_it_predicts_what_scikit_learn_does_with_the_same_coefficients(trained, arrays):
    model, X = trained.model, arrays["test_x"]
    theirs = LogisticRegression()
    theirs.classes_, theirs.coef_ = model.classes_, model.coef_.astype(np.float64)
    theirs.intercept_, theirs.n_features_in_ = model.intercept_.astype(np.float64), 5
    np.testing.assert_array_equal(model.predict(X), theirs.predict(X))
    np.testing.assert_allclose(model.predict_proba(X), theirs.predict_proba(X), rtol=1e-4)
    np.testing.assert_allclose(
        model.decision_function(X), theirs.decision_function(X), rtol=1e-3, atol=1e-5
    )
    assert model.coef_.shape == (3, 5)
    assert model.intercept_.shape == (3,)
    assert model.n_features_in_ == 5


def test_scikit_learn_takes_it_for_a_classifier(trained, arrays):
    model, X, y = trained.model, arrays["test_x"], NAMES[arrays["test_y"]]
    assert is_classifier(model)
    check_is_fitted(model)
    assert accuracy_score(y, model.predict(X)) == model.score(X, y) == trained.final_accuracy
    assert log_loss(y, model.predict_proba(X)) == pytest.approx(trained.final_loss, rel=1e-4)
    assert roc_auc_score(y, model.predict_proba(X), multi_class="ovr") > 0.9
    assert "bee" in classification_report(y, model.predict(X))
    assert check_scoring(model, "neg_log_loss")(model, X, y) < 0
    importance = permutation_importance(model, X, y, n_repeats=2, random_state=0)
    assert importance.importances_mean.shape == (5,)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)


def test_a_saved_model_comes_back(trained, arrays, tmp_path):
    file = trained.model.save(tmp_path / "model.npz")
    again = fedsofim.Model.load(file)
    np.testing.assert_array_equal(again.theta, trained.model.theta)
    np.testing.assert_array_equal(
        again.predict(arrays["test_x"]), trained.model.predict(arrays["test_x"])
    )
    assert again.classes_.tolist() == NAMES.tolist()
    assert repr(again) == repr(trained.model)
    with np.load(file, allow_pickle=False) as saved:
        assert sorted(saved) == ["about", "classes", "theta"]


def test_the_model_of_a_run_directory_is_read(trained, arrays, tmp_path):
    theta = trained.model.theta
    np.savez(tmp_path / "model.npz", theta=theta)
    model = fedsofim.Model.load(tmp_path / "model.npz")
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(arrays["test_x"], arrays["test_y"]) == trained.final_accuracy


def test_mistakes_are_told(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"records have shape \(4,\), but this model expects"):
        trained.model.predict(np.zeros((2, 4)))
    with pytest.raises(ConfigError, match=r"must end in \.npz"):
        trained.model.save(tmp_path / "model.bin")
    (tmp_path / "other.npz").write_bytes(b"PK")
    for name in ("other.npz", "nothing.npz"):
        with pytest.raises(ConfigError, match="not a model"):
            fedsofim.Model.load(tmp_path / name)
    with pytest.raises(ConfigError, match=r"fedsofim\.run"):
        trained.model.fit(np.zeros((2, 5)), [0, 1])


def test_no_records_no_predictions(trained):
    assert trained.model.predict(np.zeros((0, 5))).shape == (0,)
    assert trained.model.predict_proba(np.zeros((0, 5))).shape == (0, 3)


@pytest.mark.parametrize("shape", [(6,), (1, 4, 4)])
def test_a_network_is_a_model_as_well(rng, tmp_path, shape):
    y = np.arange(120) % 3
    X = rng.normal(size=(120, *shape)).astype(np.float32) + y.reshape(-1, *[1] * len(shape))
    data = X[:90], NAMES[y[:90]], X[90:], NAMES[y[90:]]
    few = {"clients": 3, "rounds": 3, "privacy": "none", "model": "mlp"}
    history = fedsofim.run(data=data, output=tmp_path / "run", **few)
    loaded = fedsofim.Model.load(history.model.save(tmp_path / "m.npz"))
    for model in (history.model, loaded):
        assert model.score(data[2], data[3]) == pytest.approx(history.final_accuracy)
        assert log_loss(data[3], model.predict_proba(data[2])) == pytest.approx(
            history.final_loss, rel=1e-4
        )
        assert not hasattr(model, "coef_")
