"""Large files: mapped, left as they are, and trained on with the same result."""

import numpy as np
import pytest

import fedsofim
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.data import npz
from fedsofim.data.datasets import DatasetConfig, load
from fedsofim.data.features import half, quantise, save
from fedsofim.engines import ENGINES
from fedsofim.models import coded
from fedsofim.models.coded import Rows
from fedsofim.runs.experiment import begin, prepare

HELD = {"float32": lambda arrays: arrays, "float16": half, "uint8": quantise}


def arrays(n=900, F=7, K=3):
    rng = np.random.default_rng(0)
    y = rng.integers(0, K, n + 100)
    x = (rng.standard_normal((n + 100, F)) + np.eye(K, F)[y]).astype(np.float32)
    return {"train_x": x[:n], "train_y": y[:n], "test_x": x[n:], "test_y": y[n:]}


@pytest.fixture
def large(monkeypatch):
    """Whether everything, or nothing, counts as large."""

    def told(yes):
        monkeypatch.setattr(coded, "LARGE", 0 if yes else 1 << 40)
        monkeypatch.setattr(npz, "MAPPED", 0 if yes else 1 << 40)

    return told


def trained(file, *more):
    settings = [f"dataset.path={file}", "partition.clients=3", "partition=iid", "rounds=3"]
    experiment = prepare(parse(compose(["dataset=npz", *settings, *more])))
    end = ENGINES["local"](experiment, begin(experiment), lambda *_, **__: False)
    return experiment, end.server.theta


@pytest.mark.parametrize("kind", HELD)
def test_a_file_is_read_as_it_is_with_the_same_result(kind, large, tmp_path):
    save(tmp_path / "x.npz", HELD[kind](arrays()))
    results = {}
    for yes in (False, True):
        large(yes)
        experiment, results[yes] = trained(tmp_path / "x.npz", "settings=published")
        assert all(client.data.lazy == yes for client in experiment.clients)
        held = experiment.clients[0].data.x
        if yes:
            assert held.rows.held.dtype == np.dtype(kind)
            mapped = isinstance(held.rows.held.base, np.memmap)
            assert mapped == (kind != "uint8")  # codes are packed
    np.testing.assert_array_equal(results[False], results[True])


def test_private_geometry_comes_to_the_same(large, tmp_path):
    save(tmp_path / "x.npz", half(arrays()))
    results = []
    for yes in (False, True):
        large(yes)
        experiment, theta = trained(tmp_path / "x.npz", "settings=auto", "privacy.epsilon=5")
        assert experiment.config.stages
        results.append(theta)
    np.testing.assert_allclose(*results, rtol=1e-3, atol=1e-5)


def test_a_held_out_part_and_a_network_take_it_too(large, tmp_path):
    save(tmp_path / "x.npz", half(arrays()))
    for more in ("dataset.holdout=0.2",), ("model=mlp", "model.width=4"):
        results = []
        for yes in (False, True):
            large(yes)
            results.append(trained(tmp_path / "x.npz", "settings=published", *more)[1])
        np.testing.assert_array_equal(*results)


def test_arrays_of_a_program_stay_as_they_are(large):
    held = half(arrays())
    given = held["train_x"], held["train_y"], held["test_x"], held["test_y"]
    histories = []
    for yes in (False, True):
        large(yes)
        histories.append(
            fedsofim.run(data=given, clients=3, rounds=2, settings="published", epsilon=5)
        )
    np.testing.assert_array_equal(histories[0].model.theta, histories[1].model.theta)


def test_labels_of_many_records_are_as_small_as_can_be(large, tmp_path):
    save(tmp_path / "x.npz", arrays())
    loaded = []
    for yes in (False, True):
        large(yes)
        loaded.append(load(DatasetConfig(name="npz", path=str(tmp_path / "x.npz"))))
    assert [data.train_y.dtype for data in loaded] == [np.intp, np.uint8]
    np.testing.assert_array_equal(*(data.train_y for data in loaded))


def test_its_hash_is_that_of_floats():
    x = np.random.default_rng(0).standard_normal((coded.BLOCK + 5, 3)).astype(np.float16)
    assert npz.digest({"x": Rows(x)}) == npz.digest({"x": x.astype(np.float32)})


def test_a_mapped_array_must_have_its_checksum(large, tmp_path):
    large(True)
    file = tmp_path / "x.npz"
    np.savez(file, **arrays())
    np.testing.assert_array_equal(npz.read(file, mapped=True)["train_x"], arrays()["train_x"])
    content = bytearray(file.read_bytes())
    content[len(content) // 4] ^= 1
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"not a readable \.npz file"):
        npz.read(file, mapped=True)


def test_not_a_number_is_found_in_parts(large, tmp_path):
    large(True)
    wrong = arrays()
    wrong["train_x"][[5, 600], 0] = np.nan, np.inf
    save(tmp_path / "x.npz", wrong)
    with pytest.raises(ConfigError, match="NaN or infinite features in 2 records"):
        trained(tmp_path / "x.npz")
