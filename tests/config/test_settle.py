"""Which settings a run has if none are named."""

import numpy as np
import pytest

import fedsofim
from fedsofim.config.auto import Sizes
from fedsofim.config.compose import compose, compose_many
from fedsofim.config.parts import GROUPS
from fedsofim.config.schema import parse
from fedsofim.config.settle import PUBLISHED, default_settings
from fedsofim.data.datasets import CIFAR, MEDMNIST
from fedsofim.data.sizes import KNOWN, count


def own(npz, *more):
    return compose(["dataset=npz", f"dataset.path={npz}", *more])


def test_data_of_ones_own_has_settings_from_public_numbers(npz):
    values = own(npz)
    assert values["note"].startswith("settings=auto: ")
    assert "240 records, 5 features, 3 classes" in values["note"]
    assert (values["transform"]["name"], values["rounds"]) == ("private", 20)
    assert parse(values).stages[0].name == "norms"


@pytest.mark.parametrize(
    "division", ["natural", "flwr:natural-id", "flwr:size partition.args.partition_sizes=[90,90]"]
)
def test_clients_that_the_data_name_are_reckoned_with(tmp_path, arrays, division):
    """Each adds its own noise, so the settings of two hospitals are not those of one."""
    if division.startswith("flwr"):
        pytest.importorskip("flwr_datasets")
    ids = np.arange(len(arrays["train_y"])) % 2
    np.savez(tmp_path / "x.npz", **arrays, train_client_id=ids)
    found = own(tmp_path / "x.npz", *f"partition={division}".split())
    said = own(tmp_path / "x.npz", "partition=iid", "partition.clients=2")
    assert "2 clients a round" in found["note"]
    assert found["note"] == said["note"]
    assert found["strategy"]["lr"] == said["strategy"]["lr"]


def test_the_papers_data_keeps_the_papers_settings():
    for name in PUBLISHED:
        values = compose([f"dataset={name}"])
        assert (values["transform"]["name"], values["rounds"]) == ("none", 70)
        assert "note" not in values


@pytest.mark.parametrize("name", sorted({*CIFAR, *MEDMNIST} - set(PUBLISHED)))
def test_other_named_sets_need_no_images_to_be_reckoned_with(name):
    values = compose([f"dataset={name}"])
    assert f"{KNOWN[name][0]:,} records, 64 features, {KNOWN[name][1]} classes" in values["note"]
    assert values["transform"]["statistics"] == "resnet20-cifar100"


def test_what_is_named_counts(npz):
    assert own(npz, "settings=published")["rounds"] == 70
    values = own(npz, "rounds=7", "strategy=fedgd", "strategy.lr=0.3", "transform=centre")
    assert (values["rounds"], values["strategy"]["lr"]) == (7, 0.3)
    assert values["transform"]["name"] == "centre"
    assert values["note"].startswith("settings=auto: ")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("strategy=ftrl", "no rule for strategy=ftrl"),
        ("strategy=pfedsop", "no rule for strategy=pfedsop"),
        ("strategy.direction=gradient", "direction=gradient"),
        ("transform=none", "does not go with transform=none"),
        ("model=mlp", "model=head, not mlp"),
        ("privacy.noise_multiplier=2", "noise_multiplier"),
    ],
)
def test_where_there_is_no_rule_a_line_says_so(npz, given, told):
    values = own(npz, given)
    assert values["note"].startswith("settings=published: ")
    assert told in values["note"]
    assert values["rounds"] == 70
    parse(values)


@pytest.mark.parametrize("strategy", ["ridge", "alone"])
def test_what_takes_no_rate_needs_no_word(npz, strategy):
    assert "note" not in own(npz, f"strategy={strategy}")


def test_many_are_composed_as_each_by_itself(npz):
    base = ["dataset=npz", f"dataset.path={npz}"]
    asked = [[*base, f"strategy={s}", f"seed={n}"] for s in ("fedgd", "ftrl") for n in (0, 1)]
    asked += [[*base, "strategy.direction=gradient"], [*base, "strategy.direction=momentum"]]
    assert list(compose_many(asked)) == [compose(one) for one in asked]


def test_arrays_in_memory_are_counted(rng):
    y = rng.integers(3, size=600)
    x = np.eye(3, 4)[y] * 3 + rng.normal(size=(600, 4)) + 100
    history = fedsofim.run(data=(x, y, x, y), clients=3, epsilon=20, progress=False)
    assert "600 records, 4 features, 3 classes" in history.config["note"]
    assert history.final_accuracy > 0.7
    assert len(history) == 20


def test_a_folder_and_a_file_of_images_are_counted_without_a_backbone(tmp_path, rng):
    for split, n in (("train", 3), ("test", 1)):
        for name in ("cat", "dog"):
            place = tmp_path / "photos" / split / name
            place.mkdir(parents=True)
            for k in range(n):
                (place / f"{k}.png").write_bytes(b"not read")
    values = compose(["dataset=folder", f"dataset.root={tmp_path / 'photos'}"])
    assert "6 records, 64 features, 2 classes" in values["note"]
    images = rng.integers(0, 255, size=(9, 28, 28, 3)).astype(np.uint8)
    labels = np.arange(9)[:, None] % 4
    file = tmp_path / "set.npz"
    splits = {
        f"{s}_{k}": v
        for s in ("train", "test")
        for k, v in (("images", images), ("labels", labels))
    }
    np.savez(file, **splits)
    values = compose(["dataset=npz", f"dataset.path={file}", "backbone=vgg16"])
    assert "9 records, 512 features, 4 classes" in values["note"]


def test_a_part_that_is_held_out_does_not_count(npz):
    assert "180 records" in own(npz, "dataset.holdout=0.25")["note"]


def test_what_is_told_is_believed(npz):
    told = Sizes(records=1000, features=7, classes=4)
    values = compose(["dataset=npz", f"dataset.path={npz}"], told)
    assert "1,000 records, 7 features, 4 classes" in values["note"]


@pytest.mark.parametrize(
    "given", [["dataset=owners", "dataset.classes=3"], ["dataset=npz", "dataset.path=/nowhere.npz"]]
)
def test_data_that_are_not_here_are_reckoned_with_when_they_are(given):
    assert "is not known yet" in compose(given)["note"]


def test_every_name_of_a_data_set_has_its_default():
    """None is forgotten: it is the paper's, known, counted, or told."""
    names = set(GROUPS["dataset"].known) - {"folder", "npz", "table", "hf", "arrays", "owners"}
    assert names == KNOWN.keys()
    assert [default_settings([f"dataset={name}"])[0] for name in PUBLISHED] == [[], []]


def test_embedded_sets_have_as_many_records_as_is_said():
    for name in PUBLISHED:
        config = parse(compose([f"dataset={name}"]))
        data = np.load(config.dataset.file)
        found = (len(data["train_y"]), data["train_x"].shape[1], int(data["train_y"].max()) + 1)
        assert count(config.dataset, config.backbone) == found
