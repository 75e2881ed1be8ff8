"""A data set of the user's own, in Python."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError
from fedsofim.data import npz
from fedsofim.data.classes import Classes
from fedsofim.data.images import owners
from fedsofim.data.records import Dataset, checked, hold_out


@dataclass(frozen=True, kw_only=True)
class Data(ABC):
    """A data set that is read, or made, by code.

    The fields are its settings. `arrays` gives what a `.npz` file would hold: `train_x`, `train_y`,
    `test_x` and `test_y`, and, if they are known, `train_client_id` (whose each record is),
    `class_names` (`(K,)` texts) and `probe_x` (features of noise). Features are `(N, F)`; what a
    network takes, `(N, C, H, W)`.

    Attributes:
        holdout: the part of the training records that takes the test set's place, for choosing
            settings without looking at it.
    """

    holdout: float = 0.0

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return type(self).__name__

    @property
    def classes(self) -> int | None:
        """How many classes there are; by default one more than the largest label."""
        return None

    @abstractmethod
    def arrays(self) -> Mapping[str, Array]:
        """The records, by the names of a `.npz` file; the same in every process."""

    def load(self) -> Dataset:
        """The records, checked as those of a file are."""
        try:
            arrays = {name: np.asarray(array) for name, array in self.arrays().items()}
            data = checked(_as_rows(arrays), self._agreed(), tested=not self.holdout)
            ids = owners(arrays, "train", len(data.train_y))
            train_x, test_x = (
                x.reshape(len(x), *arrays.get(name, arrays["train_x"]).shape[1:])
                for name, x in (("train_x", data.train_x), ("test_x", data.test_x))
            )
        except ConfigError as error:
            raise ConfigError(f"dataset={self.name}: {error}") from None
        data = data._replace(train_x=train_x, test_x=test_x, client_id=ids)
        data = data._replace(sha256=npz.digest(arrays))
        return hold_out(data, self.holdout) if self.holdout else data

    def _agreed(self) -> Classes | None:
        return None if self.classes is None else Classes.of(self.classes)

    def client_count(self) -> int:
        """How many clients the data name."""
        ids = self.load().client_id
        if ids is None:
            raise ConfigError("partition=natural: needs an array train_client_id")
        return len(np.unique(ids))


def _as_rows(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """What a network takes, as rows of numbers, which are checked as features are."""
    return {
        name: array.reshape(len(array), -1) if name.endswith("_x") and array.ndim > 2 else array
        for name, array in arrays.items()
    }
