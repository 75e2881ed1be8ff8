"""A trained model as an object, by scikit-learn's conventions."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsofim.config.build import build
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, choose, require
from fedsofim.core.files import whole
from fedsofim.data.vision import optional
from fedsofim.models import kinds
from fedsofim.models.head import examples

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression
    from torch import nn

    from fedsofim.models.networks import DeepNetwork


class Model:
    """A classifier that is trained already.

    It follows scikit-learn's conventions without needing it: `predict`, `predict_proba`,
    `decision_function`, `score`, `classes_`, and for a linear head `coef_` and `intercept_`. It
    takes what it was trained on: features for a linear head.

    Args:
        theta: the parameters; `(K, F+1)` with the bias last for a linear head.
        classes: the label of each output, `(K,)`; by default 0 to K - 1.
        kind: what is computed with them; by default a linear softmax head.
        shape: of one record, where the parameters do not tell.

    Attributes:
        shape: of one record: `(F,)` features, `(C, H, W)` images.

    >>> model = Model(np.array([[1.0, 0.0], [-1.0, 0.0]]), classes=["up", "down"])
    >>> model.predict([[2.0], [-3.0]]).tolist()
    ['up', 'down']
    >>> model.predict_proba([[0.0]]).tolist()
    [[0.5, 0.5]]
    """

    _estimator_type = "classifier"

    def __init__(
        self,
        theta: Array,
        classes: Any = None,
        kind: kinds.Model | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.theta = np.asarray(theta)
        self.kind = kind or kinds.Head()
        require(
            self.kind.linear or (classes is not None and shape is not None),
            f"model={self.kind.name}: classes and shape must be given",
        )
        self.classes_ = np.arange(len(self.theta)) if classes is None else np.asarray(classes)
        self.shape = (self.theta.shape[1] - 1,) if shape is None else tuple(shape)
        self.n_features_in_ = int(np.prod(self.shape))

    def predict(self, X: Any) -> Array:
        """The most likely label of each record, `(N,)`."""
        return np.asarray(self.classes_[self.decision_function(X).argmax(axis=1)])

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, `(N, K)`, in the order of `classes_`."""
        z = self.decision_function(X).astype(np.float64)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    def decision_function(self, X: Any) -> Array:
        """The logits, `(N, K)`; one column for each class, also where there are two."""
        x = np.asarray(X, np.float32)
        require(
            x.shape[1:] == self.shape,
            f"X: records have shape {x.shape[1:]}, but this model expects {self.shape}",
        )
        if self.kind.linear:
            return np.asarray((self.theta @ examples(x, np.zeros(len(x), int), 1).x).T)
        network = self._network()
        batches = network.records(x, np.zeros(len(x), np.intp)).batches()
        parts = [network.logits(self.theta, batch.x).numpy() for batch in batches]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.classes_)))

    def _network(self) -> "DeepNetwork":
        from fedsofim.models.networks import DeepNetwork  # needs torch

        network = self.kind.network(self.shape, len(self.classes_))
        assert isinstance(network, DeepNetwork)
        return network

    def score(self, X: Any, y: Any) -> float:
        """The part of the records whose label is predicted; classes by name or by number."""
        told = np.asarray(y)
        if told.dtype.kind in "iu" and self.classes_.dtype.kind == "U":
            return float(np.mean(self.decision_function(X).argmax(axis=1) == told))
        return float(np.mean(self.predict(X) == told))

    @property
    def coef_(self) -> Array:
        """The weights of a linear head, `(K, F)`."""
        return self._head()[:, :-1]

    @property
    def intercept_(self) -> Array:
        """The biases of a linear head, `(K,)`."""
        return self._head()[:, -1]

    def _head(self) -> Array:
        if not self.kind.linear:  # as scikit-learn: what is not there is no attribute
            raise AttributeError(f"model={self.kind.name} has no coef_; it is no linear head")
        return self.theta

    def fit(self, X: Any, y: Any) -> "Model":
        """Not here: a model is trained by `fedsofim.run`, which also accounts for it."""
        raise ConfigError("fit: this model is trained already; train another with fedsofim.run")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What it was made of, by name."""
        classes, shape = self.classes_, self.shape
        return {"theta": self.theta, "classes": classes, "kind": self.kind, "shape": shape}

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        """How scikit-learn, if it is used, is told that this is a classifier."""
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        tags = Tags(estimator_type="classifier", target_tags=TargetTags(required=True))
        tags.classifier_tags = ClassifierTags()
        return tags

    def to_torch(self) -> "nn.Module":
        """The same as a torch module that gives logits; a linear head is an `nn.Linear`."""
        torch = optional("torch", "a torch module needs", "export")
        if not self.kind.linear:
            network = self._network()
            network.module.load_state_dict(network.state(self.theta))
            return network.module
        layer: nn.Linear = torch.nn.Linear(self.theta.shape[1] - 1, len(self.theta))
        parts = {"weight": self.coef_, "bias": self.intercept_}
        layer.load_state_dict({k: torch.tensor(np.asarray(v)) for k, v in parts.items()})
        return layer.eval()

    def to_sklearn(self) -> "LogisticRegression":
        """The same as a `LogisticRegression` of scikit-learn's, fitted; for a linear head."""
        require(
            self.kind.linear,
            f"model={self.kind.name}: is no linear head, which is all that scikit-learn's "
            "LogisticRegression holds; choose onnx, torch or safetensors",
        )
        made: LogisticRegression = optional(
            "sklearn.linear_model", "a scikit-learn model needs", "export"
        ).LogisticRegression()
        weights, biases = self.coef_.astype(np.float64), self.intercept_.astype(np.float64)
        if len(self.classes_) == 2:  # of two classes scikit-learn keeps the difference
            weights, biases = np.diff(weights, axis=0), np.diff(biases)
        made.classes_, made.coef_, made.intercept_ = self.classes_, weights, biases
        made.n_features_in_, made.n_iter_ = self.n_features_in_, np.zeros(1, np.int32)
        return made

    def save(self, path: str | Path) -> Path:
        """Write the model to a `.npz` file, which `Model.load` reads; nothing is pickled."""
        file = Path(path)
        require(file.suffix == ".npz", f"{file}: must end in .npz")
        about = json.dumps({"name": self.kind.name, "shape": self.shape, **asdict(self.kind)})
        with whole(file) as draft, open(draft, "wb") as out:
            np.savez(out, theta=self.theta, classes=self.classes_, about=np.array(about))
        return file

    @classmethod
    def load(cls, path: str | Path) -> "Model":
        """Read a model that `save` wrote, or the `model.npz` of a run with a linear head."""
        try:
            with np.load(Path(path), allow_pickle=False) as saved:
                theta, classes = saved["theta"], saved.get("classes")
                about = json.loads(str(saved["about"])) if "about" in saved else {"name": "head"}
        except Exception as error:  # a damaged archive can fail in any of its parts
            raise ConfigError(f"{path}: not a model ({error})") from None
        kind, shape = choose(kinds.MODELS, about.pop("name"), "model"), about.pop("shape", None)
        known = None if shape is None else tuple(map(int, shape))
        return cls(theta, classes, build(kind, about, "model"), known)

    def __repr__(self) -> str:
        return f"<{self.kind.name} for {len(self.classes_)} classes, {self.theta.size} parameters>"
