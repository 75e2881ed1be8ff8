"""What the Flower tests share: a small data set, and small configs on it."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from smalldata import CLIENTS, write_records

from fedsofim.config.compose import compose


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split, records in (("train", 400), ("test", 200)):
        write_records(folder / f"{split}.npz", records, seed=records, split=split)
    parts = [np.load(folder / f"{split}.npz") for split in ("train", "test")]
    np.savez(folder / "data.npz", **{name: part[name] for part in parts for name in part.files})
    return folder / "data.npz"


@functools.cache
def _composed(data_file: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    small = [f"partition.clients={CLIENTS}", "partition.min_size=20", "rounds=4"]
    return compose(["dataset=npz", f"dataset.path={data_file}", *small, *overrides])


@pytest.fixture
def values(data_file: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Plain configs on the small data set; each has a run directory of its own."""
    made = iter(range(100))

    def make(*overrides: str) -> dict[str, Any]:
        given = copy.deepcopy(_composed(data_file, overrides))
        given["output"]["dir"] = str(tmp_path / f"run{next(made)}")
        return given

    return make
