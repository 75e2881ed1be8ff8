"""What a run leaves to a program: its curve, its cost, and its model."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsofim.api.config import Config
from fedsofim.api.model import Model
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError
from fedsofim.runs.directory import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


class History:
    """A run, finished or as far as it came.

    Attributes:
        config: the settings it was run with.
        rows: what was measured after every round: accuracy, loss, epsilon, norms, seconds.
        summary: a finished run in a few numbers; empty if it was interrupted.
        model: the trained model.
        personal: each client's own model, where the method gives them one.
        path: the run's directory, or `None` if nothing was written.
    """

    def __init__(
        self,
        *,
        config: Config,
        rows: list[Row],
        summary: Row,
        model: Model,
        personal: list[Model] | None = None,
        path: Path | None = None,
    ) -> None:
        self.config, self.rows, self.summary, self.model = config, rows, summary, model
        self.personal, self.path = personal or [], path

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rounds(self) -> Array:
        """The rounds, from 1, `(T,)`."""
        return np.array([row["round"] for row in self.rows], np.int64)

    @property
    def accuracy(self) -> Array:
        """Test accuracy after each round, `(T,)`; NaN without test data."""
        return self._column("accuracy", math.nan)

    @property
    def loss(self) -> Array:
        """Test loss after each round, `(T,)`; NaN without test data."""
        return self._column("loss", math.nan)

    @property
    def epsilon(self) -> Array:
        """The epsilon spent up to each round, `(T,)`; infinite without privacy."""
        return self._column("epsilon", math.inf)

    def _column(self, name: str, missing: float) -> Array:
        values = (row[name] for row in self.rows)
        return np.array([missing if value is None else value for value in values], np.float64)

    @property
    def final_accuracy(self) -> float:
        """Test accuracy after the last round."""
        return float(self.accuracy[-1]) if self.rows else math.nan

    @property
    def final_loss(self) -> float:
        """Test loss after the last round."""
        return float(self.loss[-1]) if self.rows else math.nan

    @property
    def final_epsilon(self) -> float:
        """The epsilon that was spent, at `delta`."""
        return float(self.epsilon[-1]) if self.rows else 0.0

    @property
    def delta(self) -> float:
        """The delta at which epsilon is told."""
        return float(self.config["privacy.delta"])

    @property
    def finished(self) -> bool:
        """Whether it came to its last round."""
        return bool(self.summary)

    def frame(self) -> "DataFrame":
        """The rows as a pandas DataFrame, one a round."""
        return frame(self.rows).set_index("round")

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw test accuracy by round, with matplotlib.

        Args:
            ax: where to draw; by default new axes.
        """
        try:
            from matplotlib import pyplot
        except ModuleNotFoundError:
            raise ConfigError("plot: needs matplotlib; pip install matplotlib") from None
        axes: Axes = ax if ax is not None else pyplot.subplots()[1]
        name, spent = self.config["strategy.name"], f"epsilon {self.final_epsilon:.3g}"
        private = math.isfinite(self.final_epsilon)
        axes.plot(
            self.rounds, 100 * self.accuracy, label=f"{name}, {spent if private else 'not private'}"
        )
        axes.set_xlabel("round")
        axes.set_ylabel("test accuracy, %")
        axes.legend()
        return axes

    def export(self, to: str, out: str | Path | None = None, **how: Any) -> Path:
        """Write the model for another tool: `onnx`, `torch`, `sklearn` or `safetensors`.

        Args:
            to: the format.
            out: the file; by default `model` with the format's ending, in the run's directory.
            **how: `images=True` for an ONNX graph that takes images, `client=` for one client's own
                model, `weights=` for the backbone's, see `fedsofim.api.export.export`.
        """
        from fedsofim.api.export import export

        return export(self, to, out, **how).file

    def __repr__(self) -> str:
        name, data = self.config["strategy.name"], self.config["dataset.name"]
        spent = f"epsilon {self.final_epsilon:.4g} at delta {self.delta:g}"
        if math.isinf(self.final_epsilon):
            spent = "not private"
        score = "" if math.isnan(self.final_accuracy) else f", accuracy {self.final_accuracy:.4f}"
        return f"<{name} on {data}: {len(self)} rounds{score}, {spent}>"


def frame(rows: list[Row]) -> "DataFrame":
    """Rows as a pandas DataFrame."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise ConfigError("frame: needs pandas; pip install pandas") from None
    return pandas.DataFrame(rows)
