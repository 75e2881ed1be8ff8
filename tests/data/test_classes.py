"""A label means what its name says: in files, folders, for owners, and in what a run leaves."""

import json

import numpy as np
import pytest

medmnist = pytest.importorskip("medmnist")
from image_sets import write_folder, write_npz
from refusal import assert_refused

from fedsofim.core.errors import ConfigError
from fedsofim.data.classes import KNOWN, NAMES, Classes, checked_names, in_order, known_names
from fedsofim.data.datasets import DatasetConfig, load, load_test
from fedsofim.data.images import Reading, folder_images
from fedsofim.data.inspection import inspect
from fedsofim.data.owned import open_records

THREE = ("adipose", "debris", "tumour")


def hospital(root, *names, test=True):
    """A folder of images of these classes only."""
    write_folder(root)
    for split in ("train", "test") if test else ("train",):
        for old, new in zip(("benign", "malignant"), names, strict=True):
            (root / split / old).rename(root / split / new)
    if not test:
        (root / "test").rename(root.parent / f"{root.name}-elsewhere")
    return root


def saved(file, names, **arrays):
    rng = np.random.default_rng(0)
    good = {"train_x": rng.normal(size=(12, 5)), "train_y": np.arange(12) % len(names)}
    good |= {"test_x": good["train_x"], "test_y": good["train_y"], NAMES: np.array(names)}
    np.savez(file, **{k: v for k, v in {**good, **arrays}.items() if v is not None})
    return file


def test_the_names_are_those_of_the_sets_makers():
    for name, names in KNOWN.items():
        if name in medmnist.INFO:
            theirs = medmnist.INFO[name]["label"].values()
            told = [one.partition("(")[0].replace(", ", " or ") for one in theirs]
            assert list(names) == told
            assert checked_names(names) == names
    assert known_names("chestmnist", "3") == ("no infiltration", "infiltration")
    every = {name for name, info in medmnist.INFO.items() if "3d" not in name}
    assert every - {"chestmnist"} <= KNOWN.keys()


@pytest.mark.parametrize(
    ("text", "names"),
    [("4", ()), ("b,a", ("b", "a")), (" b , a ", ("b", "a")), ("list.txt", ("x", "y z"))],
)
def test_what_a_person_writes(tmp_path, text, names):
    (tmp_path / "list.txt").write_text("x\n\ny z\n")
    found = Classes.written(text, tmp_path)
    assert found.names == names
    assert found.count == (len(names) or 4)


@pytest.mark.parametrize(
    "given",
    ["nothing", "a,a", "a,", "1", "a,b|c", "a,b'c", [True, False], ["a"], {"a": 1}, "a,b\n"],
)
def test_what_cannot_be_a_list_of_classes_is_told(given, tmp_path):
    read = (
        Classes.of if not isinstance(given, str) else lambda text: Classes.written(text, tmp_path)
    )
    if given == "a,b\n":  # space around names is not part of them
        assert read(given).names == ("a", "b")
        return
    with pytest.raises(ConfigError, match="classes"):
        read(given)


def test_two_hospitals_mean_the_same_by_a_label(tmp_path):
    a = hospital(tmp_path / "a", "adipose", "tumour")
    b = hospital(tmp_path / "b", "debris", "tumour", test=False)
    agreed = Reading(classes=Classes.of(THREE))
    for root, expected in ((a, [0, 2]), (b, [1, 2])):
        found = folder_images(root, agreed)
        assert found.classes == Classes(3, THREE)
        assert sorted(set(found.splits["train"].labels)) == expected
    assert "test" not in folder_images(b, agreed).splits
    assert folder_images(a, Reading()).classes.names == ("adipose", "tumour")
    with pytest.raises(ConfigError, match=r"b/train/debris: no such class .* adipose, tumour"):
        folder_images(b, Reading(classes=Classes.of(["adipose", "tumour"])))


def test_a_class_may_be_empty_where_all_are_named(tmp_path):
    root = hospital(tmp_path / "a", "adipose", "tumour")
    (root / "train" / "debris").mkdir()
    with pytest.raises(ConfigError, match=r"debris: a class folder with no files; .*classes="):
        folder_images(root, Reading())
    found = folder_images(root, Reading(classes=Classes.of(THREE)))
    assert sorted(set(found.splits["train"].labels)) == [0, 2]


def test_labels_of_a_file_are_read_by_name(tmp_path):
    file = saved(tmp_path / "x.npz", ("tumour", "adipose"))
    own = load(DatasetConfig(name="npz", path=str(file)))
    assert (own.names, own.train_y[:2].tolist()) == (("tumour", "adipose"), [0, 1])
    config = DatasetConfig(name="npz", path=str(file), classes=list(THREE))
    data, test = load(config), load_test(config, file)
    assert (data.names, data.classes) == (THREE, 3)
    assert data.train_y[:2].tolist() == data.test_y[:2].tolist() == test.y[:2].tolist() == [2, 0]
    with pytest.raises(
        ConfigError, match=r"tumour, adipose; tumour is not among the agreed a, adi"
    ):
        load(DatasetConfig(name="npz", path=str(file), classes=["a", "adipose"]))
    with pytest.raises(ConfigError, match=r"the file has the classes tumour, adipose.* has 3"):
        load(DatasetConfig(name="npz", path=str(file), classes=3))


def test_a_test_label_beyond_the_training_classes_is_an_error(tmp_path):
    y = np.array([0, 1, 2] * 4)
    file = saved(tmp_path / "x.npz", "ab", **{NAMES: None, "test_y": y})
    with pytest.raises(ConfigError, match="a test label is 2, beyond the classes 0 to 1 of the tr"):
        load(DatasetConfig(name="npz", path=str(file)))
    assert load(DatasetConfig(name="npz", path=str(file), classes=3)).classes == 3


def test_an_owner_declares_names_and_its_labels_follow(tmp_path):
    file = saved(tmp_path / "x.npz", ("adipose", "tumour"))
    plain = saved(tmp_path / "plain.npz", "ab", **{NAMES: None})
    records = open_records(file, tmp_path / "state", Classes.of(THREE))
    assert records.y[:3].tolist() == [0, 2, 0]
    assert records.examples().target.shape == (3, 12)
    assert open_records(plain, tmp_path / "other", Classes(2)).y[:3].tolist() == [0, 1, 0]
    with pytest.raises(ConfigError, match=r"names its classes: adipose, tumour; declare"):
        open_records(file, tmp_path / "state", Classes(2))
    with pytest.raises(ConfigError, match=r"tumour is not among the agreed adipose, debris"):
        open_records(file, tmp_path / "state", Classes.of(THREE[:2]))


def test_labels_in_order_are_those_of_a_table():
    rng = np.random.default_rng(0)
    own, agreed = ("c", "a"), ("a", "b", "c")
    y = rng.integers(0, 2, 50)
    expected = [agreed.index(own[k]) for k in y]
    np.testing.assert_array_equal(in_order(y, own, agreed), expected)


def test_names_come_through_to_all_that_a_run_leaves(inside, tmp_path):
    hospital(tmp_path / "set", "adipose", "tumour")
    few = ["partition=iid", "partition.clients=2", "rounds=2", "features.cache=cache"]
    given = ["dataset=folder", "dataset.root=set", "dataset.classes=[adipose,debris,tumour]"]
    done = inside("run", *given, *few, "output.dir=out", "output.counts=true")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert json.loads((out / "partition.json").read_text())["classes"] == list(THREE)
    rows = json.loads((out / "scores.json").read_text())["classes"]
    assert [row["name"] for row in rows] == list(THREE)
    header = (out / "partition.csv").read_text().splitlines()[0]
    assert header == "client,records,adipose,debris,tumour,kl,absent"
    assert "adipose, debris, tumour" in (out / "card.md").read_text()
    done = inside("predict", "out", "set/test/tumour")
    assert done.stdout.splitlines()[0] == "record,label,probability,p_adipose,p_debris,p_tumour"
    (features,) = (tmp_path / "cache" / "features").iterdir()
    done = inside("predict", "out", str(features))
    assert "% with the label that the file tells" in done.stderr
    np.testing.assert_array_equal(np.load(features)[NAMES], THREE)


def test_features_need_no_test_images_and_runs_say_so(inside, tmp_path):
    hospital(tmp_path / "b", "debris", "tumour", test=False)
    (tmp_path / "names.txt").write_text("\n".join(THREE))
    given = ["dataset=folder", "dataset.root=b", "dataset.classes=names.txt"]
    assert inside("features", *given, "out=b.npz", "features.cache=c").returncode == 0
    records = open_records(tmp_path / "b.npz", tmp_path / "state", Classes.of(THREE))
    assert sorted(set(records.y)) == [1, 2]
    few = ["partition=iid", "partition.clients=2", "rounds=1", "features.cache=c"]
    assert_refused(inside("run", *given, *few), "no test images; dataset.holdout=0.2")
    assert inside("run", *given, *few, "dataset.holdout=0.25").returncode == 0


def test_an_image_file_may_name_its_classes(tmp_path):
    file = write_npz(tmp_path / "x.npz", **{NAMES: np.array(list("dcba"))})
    config = DatasetConfig(name="npz", path=str(file), classes=list("abcd"))
    from fedsofim.data.catalog import locate

    found = locate(config, tmp_path).open()
    assert found.splits["train"].labels[:4].tolist() == [3, 2, 1, 0]


@pytest.mark.filterwarnings("error")
def test_a_look_at_features_tells_their_shape_and_warns_of_nothing(tmp_path):
    file, y = tmp_path / "x.npz", np.arange(6) % 3
    np.savez(file, x=np.zeros((6, 5, 1), np.float32), y=y)
    (fault,) = inspect(file, None).faults
    assert fault == f"{file}: x has shape (6, 5, 1); features are (records, features)"
    np.savez(file, x=np.full((6, 5), 1e30, np.float32), y=y)
    assert not inspect(file, None).faults
