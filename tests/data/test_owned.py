"""An owner's data file: checked once, mapped after that, never unpickled."""

from pathlib import Path

import numpy as np
import pytest

from fedsofim.core.errors import ConfigError
from fedsofim.data.classes import Classes
from fedsofim.data.owned import open_records
from fedsofim.models import head


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(30, 4)).astype(np.float32), "y": np.arange(30) % 3}


def test_records_are_mapped_and_equal_what_the_head_takes(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    np.savez(tmp_path / "mine.npz", **arrays)
    for _ in range(2):
        records = open_records(tmp_path / "mine.npz", tmp_path / "state", Classes(3))
        assert isinstance(records.x, np.memmap)
        expected = head.examples(arrays["x"], arrays["y"], 3)
        assert records.examples().transformed is None
        for mine, theirs in zip(records.examples()[:3], expected[:3], strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype


def test_a_changed_file_is_read_again_and_the_old_copy_goes(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    file, state = tmp_path / "mine.npz", tmp_path / "state"
    np.savez(file, **arrays)
    open_records(file, state, Classes(3))
    np.savez(file, train_x=arrays["x"][:7], train_y=arrays["y"][:7])
    assert open_records(file, state, Classes(3)).x.shape == (5, 7)
    assert len(list(state.glob("records-*"))) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.array([{"a": 1}] * 30, object)}, "not a readable .npz"),
        ({"x": np.zeros((30, 2, 2), np.float32)}, "not images"),
        ({"y": np.zeros(3, int)}, r"shape \(3,\) for 30 records"),
        ({"x": np.full((30, 4), np.nan, np.float32)}, "NaN or infinite"),
    ],
)
def test_faults_name_the_file(
    tmp_path: Path, arrays: dict[str, np.ndarray], change: dict, message: str
) -> None:
    np.savez(tmp_path / "mine.npz", **{**arrays, **change})
    with pytest.raises(ConfigError, match=message) as error:
        open_records(tmp_path / "mine.npz", tmp_path / "state", Classes(3))
    assert "mine.npz" in str(error.value)


def test_a_missing_file_and_a_label_too_many(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match="there is no such data file"):
        open_records(tmp_path / "none.npz", tmp_path, Classes(3))
    np.savez(tmp_path / "mine.npz", **arrays)
    open_records(tmp_path / "mine.npz", tmp_path, Classes(3))
    with pytest.raises(ConfigError, match="a label is 2, but there are 2 classes"):
        open_records(tmp_path / "mine.npz", tmp_path, Classes(2))
