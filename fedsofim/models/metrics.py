"""Metrics beside accuracy and loss, measured on the server's test set."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsofim.core.arrays import Array


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The default metric, which adds nothing to accuracy and loss.

    A metric of your own says what more, in `measure`. The server's test set is its own, so nothing
    here costs privacy.

    Attributes:
        name: what the config calls it.
    """

    name: ClassVar[str] = "none"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = vars(cls).get("name", cls.__name__)

    def measure(self, labels: Array, predicted: Array) -> Mapping[str, float]:
        """Numbers by name, for the round's row in `metrics.jsonl`.

        Args:
            labels: the true class of each test record, `(M,)`.
            predicted: the most likely class of each, by the model, `(M,)`.
        """
        return {}


METRICS: dict[str, type[Metric]] = {"none": Metric}
