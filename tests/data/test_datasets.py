import io
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsofim.core.errors import ConfigError
from fedsofim.data.datasets import DatasetConfig, load


def read(path, **options):
    return load(DatasetConfig(name="npz", path=str(path), **options))


def saved(path, arrays, **changes):
    kept = {k: v for k, v in (arrays | changes).items() if v is not None}
    np.savez(path, **kept)
    return path


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("cifar10", (50_000, 64, 10_000), 10), ("pathmnist", (89_996, 64, 7_180), 9)],
)
def test_embedded_sets(name, shape, classes):
    data = load(DatasetConfig(name=name))
    assert (*data.train_x.shape, len(data.test_x)) == shape
    assert data.classes == classes
    assert data.train_x.dtype == data.test_x.dtype == np.float32
    assert np.isfinite(data.train_x).all()
    assert len(np.unique(data.train_y)) == classes


def test_a_users_own_features(npz, arrays):
    data = read(npz)
    np.testing.assert_array_equal(data.train_x, arrays["train_x"])
    np.testing.assert_array_equal(data.test_y, arrays["test_y"])
    assert data.classes == 3


def test_the_names_and_columns_of_medmnist(tmp_path, arrays):
    names = {"train_x": "train_images", "train_y": "train_labels"}
    names |= {"test_x": "test_images", "test_y": "test_labels"}
    theirs = {names[k]: v[:, None] if k.endswith("y") else v for k, v in arrays.items()}
    theirs |= {"val_images": arrays["test_x"], "val_labels": arrays["test_y"]}
    data = read(saved(tmp_path / "m.npz", theirs))
    np.testing.assert_array_equal(data.train_y, arrays["train_y"])
    np.testing.assert_array_equal(data.test_x, arrays["test_x"])


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.uint64])
def test_labels_of_any_whole_kind(tmp_path, arrays, kind):
    changes = {k: arrays[k].astype(kind) for k in ("train_y", "test_y")}
    data = read(saved(tmp_path / "k.npz", arrays, **changes))
    np.testing.assert_array_equal(data.train_y, arrays["train_y"])


def test_quantised_features_are_scaled_back(tmp_path, arrays):
    lo, scale = np.linspace(-2, -1, 5), np.linspace(0.1, 0.2, 5)
    q = {k: np.arange(len(v) * 5).reshape(-1, 5).astype(np.uint8) for k, v in arrays.items()}
    changes = {"train_x": q["train_x"], "test_x": q["test_x"], "lo": lo, "scale": scale}
    data = read(saved(tmp_path / "q.npz", arrays, **changes))
    np.testing.assert_allclose(data.train_x, lo + scale * q["train_x"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data.test_x, lo + scale * q["test_x"], rtol=1e-5, atol=1e-5)


def test_classes_may_be_more_than_the_labels_show(npz):
    assert read(npz, classes=7).classes == 7


def with_value(array, value):
    changed = array.astype(float)
    changed[3, 1] = value
    return changed


X, Y = np.zeros((12, 5)), np.arange(12) % 3
BAD = {
    "no test": ({"test_x": None}, "no array test_x or test_images; it holds train_x"),
    "images": ({"train_x": np.zeros((12, 8, 8, 3))}, r"\(12, 8, 8, 3\); features are"),
    "flat": ({"train_x": np.zeros(12)}, "has shape"),
    "empty": ({"train_x": np.zeros((0, 5)), "train_y": Y[:0]}, "has shape"),
    "no features": ({"train_x": np.zeros((12, 0))}, "has shape"),
    "few labels": ({"train_y": Y[:11]}, r"train_y has shape \(11,\) for 12 records"),
    "one-hot labels": ({"train_y": np.eye(12, 3, dtype=int)}, r"train_y has shape \(12, 3\)"),
    "other width": ({"test_x": np.zeros((12, 4))}, "train has 5 features and test has 4"),
    "nan": ({"train_x": with_value(X, np.nan)}, "NaN or infinite features in 1 records"),
    "infinite": ({"test_x": with_value(X, np.inf)}, "test_x has NaN or infinite"),
    "too large": ({"train_x": with_value(X, 1e300)}, "NaN or infinite"),
    "complex": ({"train_x": X + 1j}, "not real numbers"),
    "texts": ({"train_x": X.astype(str)}, "not real numbers"),
    "truths": ({"train_x": X > 0}, "not real numbers"),
    "fractions": ({"train_y": Y + 0.5}, "train_y holds float64, not whole numbers"),
    "negative": ({"train_y": Y - 1}, "train_y has the negative label -1"),
    "wrapped": ({"train_y": (Y - 1).astype(np.uint64)}, "has the label 18446744073709551615"),
    "huge label": ({"train_y": Y + 10**9}, "a label is 1000000002, and there are 12 records"),
    "one class": ({"train_y": 0 * Y, "test_y": 0 * Y}, "at least two classes"),
    "objects": ({"train_x": np.array([{}] * 12, dtype=object)}, "not a readable .npz file"),
    "scale alone": ({"scale": np.ones(5)}, "no array lo"),
    "scale of another shape": ({"scale": np.ones(4), "lo": np.ones(5)}, "scale is float64"),
    "scale of texts": ({"scale": np.ones(5), "lo": np.array(list("abcde"))}, "lo is <U1"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fault", BAD)
def test_bad_arrays_are_told(tmp_path, fault):
    changes, message = BAD[fault]
    good = {"train_x": X, "train_y": Y, "test_x": X, "test_y": Y}
    path = saved(tmp_path / "bad.npz", good, **changes)
    with pytest.raises(ConfigError, match=message) as error:
        read(path)
    assert str(path) in str(error.value)


def test_labels_beyond_the_given_classes_are_told(npz):
    with pytest.raises(ConfigError, match="a label is 2, but there are 2 classes"):
        read(npz, classes=2)


@pytest.mark.parametrize("classes", [-1, 0, 1])
def test_there_are_at_least_two_classes(npz, classes):
    with pytest.raises(ConfigError, match="at least two classes"):
        read(npz, classes=classes)


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def npy():
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"hello", npy(), pickle.dumps(Harmful()), b"PK\x03\x04" + 99 * b"\0"]
)
def test_other_files_are_told_and_never_unpickled(tmp_path, content):
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"not a readable \.npz file"):
        read(path)


def test_a_pickle_inside_is_never_run(tmp_path, arrays):
    path = saved(tmp_path / "p.npz", arrays, train_x=np.array([Harmful()] * 240, dtype=object))
    with pytest.raises(ConfigError, match=r"not a readable \.npz file"):
        read(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_told_or_harmless(tmp_path, arrays, save, data):
    path = tmp_path / "damaged.npz"
    save(path, **arrays)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans(), label="cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        assert np.isfinite(read(path).train_x).all()
    except ConfigError as error:
        assert str(path) in str(error)  # noqa: PT017


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_told(npz, cut):
    content = npz.read_bytes()
    npz.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(ConfigError, match=r"not a readable \.npz file"):
        read(npz)


def test_a_missing_file_or_name_is_told(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        read(tmp_path / "none.npz")
    with pytest.raises(ConfigError, match="there is no such file"):
        read(tmp_path)
    with pytest.raises(ConfigError, match=r"path: name a \.npz file"):
        DatasetConfig(name="npz")
    with pytest.raises(ConfigError, match="choose one of cifar10, cifar100, bloodmnist"):
        DatasetConfig(name="mnist")
