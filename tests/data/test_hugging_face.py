"""Data sets of Hugging Face's: images, features and tables, with the names of their classes."""

import io
import json
import sys

import numpy as np
import pytest
import yaml

datasets = pytest.importorskip("datasets")
from image_sets import images, write_folder
from PIL import Image
from refusal import assert_refused

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.data import npz
from fedsofim.data.features import Extraction
from fedsofim.data.hugging_face import HuggingFace
from fedsofim.data.recipe import FeaturesConfig
from fedsofim.runs.experiment import prepare

NAMES = ["adipose", "debris", "tumour, solid"]
FEW = ["rounds=2", "partition.clients=3", "features.cache=cache", "output.dir=out"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")


def vectors(count, *, seed=0, **more):
    """Features that tell three classes apart."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = rng.standard_normal((count, 6)) + 2 * np.eye(3, 6)[y]
    columns = {"embedding": x.astype(np.float32).tolist(), "label": y.tolist(), **more}
    kinds = {
        "embedding": datasets.List(datasets.Value("float32"), length=6),
        "label": datasets.ClassLabel(names=NAMES),
    }
    known = datasets.Dataset.from_dict(columns).features
    return datasets.Dataset.from_dict(columns, datasets.Features({**known, **kinds}))


def save(folder, train, test=None):
    splits = {"train": train} | ({"test": test} if test is not None else {})
    datasets.DatasetDict(splits).save_to_disk(folder)
    return folder


@pytest.fixture
def features(tmp_path):
    whose = [f"clinic {k % 4}" for k in range(90)]
    return save(tmp_path / "x", vectors(90, site=whose), vectors(30, seed=1, site=whose[:30]))


def pictures(count, size=28):
    """Images, each a PNG or, every third, a file of another size."""
    pixels, labels = images(np.random.default_rng(0), count, size)
    columns = {"image": [Image.fromarray(p) for p in pixels], "label": labels[:, 0].tolist()}
    names = datasets.ClassLabel(names=["a", "b", "c", "d"])
    kinds = datasets.Features({"image": datasets.Image(), "label": names})
    return datasets.Dataset.from_dict(columns, kinds), pixels


def arrays_of(dataset, cache):
    extraction = Extraction(dataset=dataset, features=FeaturesConfig(cache=str(cache)))
    return npz.read(extraction.file())


def test_features_are_taken_as_they_are(features, tmp_path):
    arrays = arrays_of(HuggingFace(path=str(features), client="site"), tmp_path / "cache")
    expected = vectors(90)
    np.testing.assert_array_equal(arrays["train_x"], np.array(expected["embedding"][:], np.float32))
    np.testing.assert_array_equal(arrays["train_y"], expected["label"][:])
    assert len(arrays["test_x"]) == 30
    assert arrays["class_names"].tolist() == ["adipose", "debris", "tumour solid"]
    assert arrays["train_client_id"][:5].tolist() == [f"clinic {k}" for k in (0, 1, 2, 3, 0)]


def test_a_run_names_classes_and_clients(features, inside, tmp_path):
    given = ["run", "dataset=hf", "dataset.path=x", "dataset.client=site", "partition=natural"]
    done = inside(
        *given, "rounds=2", "features.cache=cache", "output.dir=out", "output.counts=true"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "4 clients (natural)" in done.stdout
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert "tumour solid" in json.dumps(scores)
    header = (tmp_path / "out" / "partition.csv").read_text().splitlines()[0]
    assert header == "client,records,adipose,debris,tumour solid,kl,absent"
    made = inside("features", "dataset=hf", "dataset.path=x", "features.cache=cache", "out=f.npz")
    assert made.returncode == 0, made.stderr
    told = inside("predict", "out", "f.npz")
    assert told.returncode == 0, told.stderr
    assert "tumour solid" in told.stdout


def test_agreed_classes_are_read_by_name(features):
    agreed = ["tumour solid", "stroma", "debris", "adipose"]
    config = parse(
        compose(
            [
                *("dataset=hf", f"dataset.path={features}", "partition=iid"),
                f"dataset.classes=[{','.join(agreed)}]",
                f"features.cache={features.parent / 'c'}",
            ]
        )
    )
    experiment = prepare(config)
    assert experiment.partition["classes"] == agreed
    counts = np.sum(experiment.partition["counts"], axis=0)
    assert counts.tolist() == [30, 0, 30, 30]


def test_images_go_through_the_backbone_as_others_do(tmp_path):
    """The same pixels in a folder of save_to_disk and in a .npz have the same features."""
    train, pixels = pictures(12)
    save(tmp_path / "x", train, train)
    labels = np.array(train["label"][:])
    file = tmp_path / "x.npz"
    np.savez(file, train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)
    from fedsofim.data.datasets import DatasetConfig

    theirs = arrays_of(HuggingFace(path=str(tmp_path / "x")), tmp_path / "cache")
    ours = arrays_of(DatasetConfig(name="npz", path=str(file)), tmp_path / "cache")
    np.testing.assert_array_equal(theirs["train_x"], ours["train_x"])
    np.testing.assert_array_equal(theirs["train_y"], labels)
    assert theirs["class_names"].tolist() == ["a", "b", "c", "d"]


def test_a_folder_of_images_is_what_load_dataset_makes_of_it(tmp_path, inside):
    write_folder(tmp_path / "photos")
    given = ["run", "dataset=hf", "dataset.path=photos", *FEW, "partition=iid"]
    done = inside(*given)
    assert done.returncode == 0, done.stderr
    assert "2 rounds" in done.stdout
    assert "malignant" in (tmp_path / "out" / "scores.json").read_text()


def test_a_folder_of_parquet_and_a_network(tmp_path, inside):
    (tmp_path / "p").mkdir()
    vectors(60).to_parquet(tmp_path / "p" / "train.parquet")
    vectors(15, seed=2).to_parquet(tmp_path / "p" / "test.parquet")
    given = ["run", "dataset=hf", "dataset.path=p", *FEW, "partition=iid", "model=mlp"]
    done = inside(*given, "privacy=none")
    assert done.returncode == 0, done.stderr


def table(count, seed=0):
    rng = np.random.default_rng(seed)
    ill = rng.random(count) < 0.5
    columns = {
        "age": (np.where(ill, 70, 30) + rng.integers(-20, 20, count)).tolist(),
        "sex": rng.integers(0, 2, count).tolist(),
        "outcome": ill.astype(int).tolist(),
    }
    kinds = {
        "age": datasets.Value("int64"),
        "sex": datasets.ClassLabel(names=["f", "m"]),
        "outcome": datasets.ClassLabel(names=["well", "ill"]),
    }
    return datasets.Dataset.from_dict(columns, datasets.Features(kinds))


SCHEMA = {
    "target": "outcome",
    "classes": ["well", "ill"],
    "columns": {"age": {"low": 0, "high": 100}, "sex": ["f", "m"]},
}


def test_a_table_is_coded_by_its_schema(tmp_path):
    table(50).save_to_disk(tmp_path / "x")
    (tmp_path / "x.schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    arrays = arrays_of(HuggingFace(path=str(tmp_path / "x"), holdout=0.2), tmp_path / "cache")
    rows = table(50)
    assert arrays["train_x"].shape == (50, 3)
    np.testing.assert_allclose(
        arrays["train_x"][:, 0], np.array(rows["age"][:]) / 50 - 1, atol=1e-6
    )
    np.testing.assert_array_equal(arrays["train_x"][:, 2], rows["sex"][:])
    np.testing.assert_array_equal(arrays["train_y"], rows["outcome"][:])
    (tmp_path / "x.schema.yaml").write_text(
        yaml.safe_dump(SCHEMA | {"columns": {"age": {"low": 0, "high": 200}}})
    )
    again = arrays_of(HuggingFace(path=str(tmp_path / "x"), holdout=0.2), tmp_path / "cache")
    assert again["train_x"].shape == (50, 1)  # another schema is another file of features


def test_a_schema_is_drafted_and_a_folder_is_looked_at(tmp_path, inside, features):
    table(50).save_to_disk(tmp_path / "t")
    done = inside("data", "schema", "t", "--target", "outcome")
    assert done.returncode == 0, done.stderr
    assert "dataset=hf dataset.path=t" in done.stdout
    told = yaml.safe_load((tmp_path / "t.schema.yaml").read_text())
    assert told["classes"] == ["ill", "well"]
    assert told["columns"]["sex"] == ["f", "m"]
    checked = inside("data", "check", "t")
    assert checked.returncode == 0, checked.stderr
    assert "50" in checked.stdout
    looked = inside("data", "check", "x")
    assert looked.returncode == 0, looked.stdout
    assert "adipose 30, debris 30, tumour solid 30" in looked.stdout
    assert inside("data", "check", "t", "--classes", "well,dead").returncode == 2


def test_one_record_changes_no_others(tmp_path):
    """Else a clipped gradient would not account for what one record moves."""
    one = vectors(20)
    other = one.map(lambda row, i: {"embedding": [9.0] * 6} if i == 3 else row, with_indices=True)
    for name, data in (("one", one), ("other", other)):
        data.save_to_disk(tmp_path / name)
    a, b = (
        arrays_of(HuggingFace(path=str(tmp_path / n), holdout=0.2), tmp_path / "cache")["train_x"]
        for n in ("one", "other")
    )
    assert np.flatnonzero((a != b).any(axis=1)).tolist() == [3]


def texts(count):
    data = vectors(count).remove_columns("label")
    return data.add_column("kind", ["no", "yes"] * (count // 2))


def test_texts_are_labels_only_where_the_classes_are_declared(tmp_path):
    texts(20).save_to_disk(tmp_path / "x")
    given = {"path": str(tmp_path / "x"), "target": "kind", "holdout": 0.2}
    with pytest.raises(ConfigError, match=r"kind holds texts; say which .* dataset\.classes"):
        arrays_of(HuggingFace(**given), tmp_path / "cache")
    arrays = arrays_of(HuggingFace(**given, classes=["yes", "no"]), tmp_path / "cache")
    assert arrays["train_y"][:4].tolist() == [1, 0, 1, 0]
    with pytest.raises(ConfigError, match=r"has .'no'., which is not among yes, maybe"):
        arrays_of(HuggingFace(**given, classes=["yes", "maybe"]), tmp_path / "cache")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], ["dataset.path, hub: name a folder, or a data set of the hub"]),
        (["dataset.path=nowhere"], ["nowhere: there is no such folder", "dataset.hub=NAME"]),
        (["dataset.path=f.csv"], ["f.csv: not a folder", "dataset=table"]),
        (["dataset.path=x", "dataset.column=nope"], ["column=nope: no such column", "embedding"]),
        (["dataset.path=x", "dataset.column=site"], ["column=site: holds neither images nor"]),
        (["dataset.path=x", "dataset.target=y"], ["dataset.target=y: no such column"]),
        (["dataset.path=x", "dataset.client=who"], ["dataset.client=who: no such column"]),
        (
            ["dataset.path=x", "partition=natural", "partition.clients=null"],
            ["partition=natural: dataset.client=COLUMN"],
        ),
        (["dataset.path=x", "dataset.test_split=dev"], ["has no split dev; it has train, test"]),
        (["dataset.path=x", "dataset.train_split=dev"], ["has no split dev; it has train, test"]),
        (["dataset.path=x", "dataset.labels=y"], ["dataset.labels: no such key"]),
        (["dataset.path=t"], ["no column holds images or lists", "'fedsofim data schema"]),
        (["dataset.path=only", "dataset.target=label"], ["has no test records", "holdout=0.2"]),
        (["dataset.path=broken"], ["broken: not a readable data set"]),
        (["dataset.path=texts"], ["dataset.target=COLUMN says what to predict", "kind"]),
        (["dataset.path=two"], ["several columns could be meant", "dataset.column="]),
        (["dataset.path=uneven"], ["lists of embedding must all be there, and equally long"]),
        (["dataset.path=minus"], ["negative label -1"]),
    ],
)
def test_mistakes_are_one_line(inside, features, tmp_path, given, words):
    (tmp_path / "f.csv").write_text("a,b\n1,2\n")
    table(10).save_to_disk(tmp_path / "t")
    vectors(10).save_to_disk(tmp_path / "only")
    texts(10).save_to_disk(tmp_path / "texts")
    vectors(9, more=[[1.0, 2.0]] * 9).save_to_disk(tmp_path / "two")
    uneven = {"embedding": [[1.0], [1.0, 2.0], [3.0]], "label": [0, 1, 0]}
    datasets.Dataset.from_dict(uneven).save_to_disk(tmp_path / "uneven")
    minus = {"embedding": [[1.0], [2.0], [3.0]], "label": [0, 1, -1]}
    save(tmp_path / "minus", datasets.Dataset.from_dict(minus), datasets.Dataset.from_dict(minus))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "state.json").write_text("{")
    done = inside("run", "dataset=hf", *FEW, "partition=iid", *given)
    assert_refused(done, *words)


def test_a_broken_image_is_named_by_its_record(tmp_path):
    good = io.BytesIO()
    Image.new("RGB", (8, 8)).save(good, "PNG")
    cells = [{"bytes": good.getvalue(), "path": None}, {"bytes": b"no image", "path": None}]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = datasets.Dataset.from_dict({"image": cells, "label": [0, 1]}, kinds)
    rows.save_to_disk(tmp_path / "x")
    with pytest.raises(ConfigError, match="x: record 1: a broken image"):
        arrays_of(HuggingFace(path=str(tmp_path / "x"), holdout=0.5), tmp_path / "cache")


def test_the_hub_out_of_reach_is_one_line(cli, environment, tmp_path):
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = cli("run", "dataset=hf", "dataset.hub=ylecun/mnist", "rounds=1")
    assert_refused(done, "dataset.hub=ylecun/mnist: cannot be had from the hub", "dataset.path=DIR")


def test_without_the_extra_a_line_says_what_to_install(inside, features, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    done = inside("run", "dataset=hf", "dataset.path=x", *FEW)
    assert_refused(done, "dataset=hf needs datasets", "pip install 'fedsofim[hf]'")
