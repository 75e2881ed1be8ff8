"""Images are read in batches, in order, and whatever is wrong with them is told with its file."""

import tracemalloc

import numpy as np
import pytest

medmnist = pytest.importorskip("medmnist")
from image_sets import CLASSES, TEST, TRAIN, write_folder, write_npz
from PIL import Image

from fedsofim.config.compose import compose
from fedsofim.core.errors import ConfigError
from fedsofim.data import npz
from fedsofim.data.catalog import locate
from fedsofim.data.classes import Classes
from fedsofim.data.datasets import MEDMNIST, DatasetConfig
from fedsofim.data.images import Reading, folder_images, npz_images
from fedsofim.data.vision import torchvision


def together(split, size=7):
    return np.concatenate([np.stack(list(batch)) for batch in split.batches(size)])


@pytest.mark.parametrize("size", [1, 7, TRAIN, 1000])
def test_batches_of_an_npz_are_its_images_in_order(tmp_path, size):
    file = write_npz(tmp_path / "set.npz")
    found = npz_images(file, Reading())
    with np.load(file) as arrays:
        for split in ("train", "val", "test"):
            np.testing.assert_array_equal(
                together(found.splits[split], size), arrays[f"{split}_images"]
            )
            np.testing.assert_array_equal(
                found.splits[split].labels, arrays[f"{split}_labels"][:, 0]
            )
    assert found.classes == Classes(CLASSES)


def test_a_large_npz_is_never_in_memory(tmp_path):
    file = write_npz(tmp_path / "set.npz", train=2000, size=64)  # 24 MB
    split = npz_images(file, Reading()).splits["train"]
    tracemalloc.start()
    count = sum(len(batch) for batch in split.batches(50))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 2000
    assert peak < 4e6


def test_medmnist_files_are_read_as_medmnist_reads_them(tmp_path):
    write_npz(tmp_path / "bloodmnist_64.npz", size=64)
    config = DatasetConfig(name="bloodmnist", root=str(tmp_path), size=64)
    found = locate(config, tmp_path).open()
    theirs = medmnist.BloodMNIST("train", root=str(tmp_path), size=64)
    np.testing.assert_array_equal(together(found.splits["train"]), theirs.imgs)
    np.testing.assert_array_equal(found.splits["train"].labels, theirs.labels[:, 0])
    assert found.classes.count == 8


def test_every_2d_set_of_medmnist_has_a_config_that_fits_it():
    known = {name for name, info in medmnist.INFO.items() if "3d" not in name}
    assert known == set(MEDMNIST)
    for name in MEDMNIST:
        values = compose([f"dataset={name}"])["dataset"]
        assert values["name"] == name
        assert values.get("as_rgb", False) == (medmnist.INFO[name]["n_channels"] == 1), name
        several = "multi-label" in medmnist.INFO[name]["task"]
        assert (values.get("label") is not None) == several, name


def test_several_labels_need_a_choice(tmp_path):
    y = np.eye(4, 14, dtype=np.uint8)[np.arange(TRAIN) % 4] * (np.arange(TRAIN) % 3 > 0)[:, None]
    file = write_npz(tmp_path / "chestmnist.npz", grey=True, train_labels=y.astype(np.uint8))
    with pytest.raises(ConfigError, match=r"chestmnist.*14 labels.*dataset.label=any"):
        npz_images(file, Reading(as_rgb=True))
    some = (
        npz_images(file, Reading(as_rgb=True, label="any", classes=Classes(4)))
        .splits["train"]
        .labels
    )
    np.testing.assert_array_equal(some, y.any(axis=1))
    one = (
        npz_images(file, Reading(as_rgb=True, label="2", classes=Classes(4))).splits["train"].labels
    )
    np.testing.assert_array_equal(one, y[:, 2])


def test_grey_images_are_refused_or_repeated(tmp_path):
    file = write_npz(tmp_path / "grey.npz", grey=True)
    with pytest.raises(ConfigError, match=r"grey\.npz: .*grey images.*dataset\.as_rgb=true"):
        npz_images(file, Reading())
    x = together(npz_images(file, Reading(as_rgb=True)).splits["train"])
    assert x.shape == (TRAIN, 28, 28, 3)
    assert (x == x[..., :1]).all()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"train_labels": np.full((TRAIN, 1), 9, np.uint8)}, "train has the label 9 at record 0"),
        ({"test_labels": np.full(TEST, -1)}, "test has the label -1"),
        ({"train_labels": np.zeros((TRAIN, 1))}, "float64, not whole numbers"),
        ({"train_labels": np.zeros(7, np.uint8)}, "7 labels for 40 images"),
        ({"train_images": np.zeros((TRAIN, 28, 28, 3))}, "8-bit"),
        ({"train_images": np.zeros((TRAIN, 28, 28, 4), np.uint8)}, "shape"),
        ({"train_images": np.zeros((0, 28, 28, 3), np.uint8)}, "empty"),
        ({"test_labels": None}, "no array test_labels"),
        ({"train_client_id": np.zeros(3, int)}, "train_client_id has shape"),
    ],
)
def test_a_faulty_npz_is_told_with_its_name(tmp_path, change, told):
    file = write_npz(tmp_path / "bad.npz", **change)
    with pytest.raises(ConfigError, match=told) as error:
        npz_images(file, Reading(classes=Classes(CLASSES)))
    assert str(error.value).startswith(str(file))


def test_a_truncated_or_flipped_npz_is_told_with_its_name(tmp_path):
    file = write_npz(tmp_path / "set.npz")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"set\.npz: not a readable \.npz file"):
        npz_images(file, Reading())
    middle = len(whole) // 3  # amid the pixels
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    found = npz_images(file, Reading())
    with pytest.raises(ConfigError, match=r"set\.npz: not a readable \.npz file"):
        together(found.splits["train"])


def test_fortran_order_is_told(tmp_path):
    x = np.asfortranarray(np.zeros((TRAIN, 28, 28, 3), np.uint8))
    file = write_npz(tmp_path / "set.npz", train_images=x)
    with pytest.raises(ConfigError, match="Fortran"):
        list(npz.rows(file, "train_images", 10))


def test_a_folder_is_read_by_class_whatever_sizes_and_formats(tmp_path):
    root = write_folder(tmp_path / "set")
    (root / "train" / "benign" / ".DS_Store").write_text("not an image")
    found = folder_images(root, Reading())
    train = found.splits["train"]
    np.testing.assert_array_equal(train.labels, [0] * 6 + [1] * 6)
    pictures = [image for batch in train.batches(5) for image in batch]
    assert [p.shape for p in pictures[:3]] == [(30, 40, 3), (31, 40, 3), (32, 40, 3)]
    assert np.mean(pictures[0]) < 80 < np.mean(pictures[-1])


def breaking(root, what):
    benign = root / "train" / "benign"
    if what == "empty class":
        (root / "train" / "odd").mkdir()
        return root / "train" / "odd"
    if what == "unknown class":
        (root / "test" / "benign").rename(root / "test" / "other")
        return root / "test" / "other"
    file = benign / {"truncated": "3.png", "no image": "notes.txt", "16 bits": "deep.png"}[what]
    if what == "truncated":
        file.write_bytes(file.read_bytes()[:300])
    elif what == "no image":
        file.write_text("hello")
    else:
        Image.fromarray(np.full((9, 9), 40_000, np.uint16)).save(file)
    return file


@pytest.mark.parametrize(
    "what", ["truncated", "no image", "16 bits", "empty class", "unknown class"]
)
def test_a_faulty_folder_is_told_with_the_file(tmp_path, what):
    root = write_folder(tmp_path / "set")
    broken = breaking(root, what)
    with pytest.raises(ConfigError) as error:
        list(folder_images(root, Reading()).splits["train"].batches(4))
    assert str(broken) in str(error.value)
    assert "\n" not in str(error.value)


def test_grey_files_are_told_or_repeated(tmp_path):
    root = write_folder(tmp_path / "set", mode="L")
    # webp has no grey mode: its files are colour
    with pytest.raises(ConfigError, match=r"0\.png: grey images"):
        list(folder_images(root, Reading()).splits["train"].batches(4))
    batches = folder_images(root, Reading(as_rgb=True)).splits["train"].batches(4)
    assert all(image.shape[-1] == 3 for batch in batches for image in batch)


@pytest.fixture
def small_cifar(monkeypatch, tmp_path):
    """torchvision's CIFAR-100 layout with 8 + 4 images, and torchvision told to expect that."""
    import hashlib
    import pickle

    dataset = torchvision("datasets").CIFAR100
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    rng = np.random.default_rng(0)
    contents = {"meta": {"fine_label_names": [str(i) for i in range(100)]}}
    for name, count in (("train", 8), ("test", 4)):
        pixels = rng.integers(0, 256, (count, 3072)).astype(np.uint8)
        contents[name] = {"data": pixels, "fine_labels": list(range(count))}
    sums = {}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(dataset, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(dataset, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": sums["meta"]})
    return tmp_path, contents


def test_cifar_is_read_through_torchvision(small_cifar):
    root, contents = small_cifar
    found = locate(DatasetConfig(name="cifar100", root=str(root), classes=100), root).open()
    pixels = contents["train"]["data"].reshape(8, 3, 32, 32).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(together(found.splits["train"], 3), pixels)
    np.testing.assert_array_equal(found.splits["test"].labels, range(4))
    assert found.classes.count == 100


def test_a_damaged_cifar_is_told_with_its_folder(small_cifar):
    root, _ = small_cifar
    (root / "cifar-100-python" / "test").write_bytes(b"cut short")
    with pytest.raises(ConfigError, match=r"cifar-100-python: incomplete or damaged"):
        locate(DatasetConfig(name="cifar100", root=str(root)), root).open()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"name": "bloodmnist"}, "dataset.root: name the folder that holds bloodmnist.npz"),
        ({"name": "bloodmnist", "root": "."}, "has no bloodmnist.npz; place it there"),
        ({"name": "cifar100", "root": "."}, "cifar-100-python/ or cifar100.npz"),
        ({"name": "cifar100", "root": "nowhere"}, "dataset.root=nowhere: there is no such folder"),
    ],
)
def test_missing_files_say_what_to_place_where(tmp_path, monkeypatch, config, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told):
        locate(DatasetConfig(**config), tmp_path)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"name": "mnist"}, "choose one of cifar10"),
        ({"name": "folder"}, "root: name the folder"),
        ({"name": "npz"}, "path: name a .npz"),
        ({"name": "bloodmnist", "size": 32}, "choose one of 28, 64, 128, 224"),
        ({"name": "cifar10", "size": 64}, "sizes are MedMNIST's"),
    ],
)
def test_a_config_is_checked(config, told):
    with pytest.raises(ConfigError, match=told):
        DatasetConfig(**config)
