"""A table is coded row by row, by what its schema declares and by nothing else."""

import json

import numpy as np
import pytest
import yaml

pa = pytest.importorskip("pyarrow")
from pyarrow import csv, parquet
from refusal import assert_refused

from fedsofim.core.errors import ConfigError
from fedsofim.data.inspection import inspect, shown
from fedsofim.data.own import Data
from fedsofim.data.schema import drafted, read_schema
from fedsofim.data.table import Table

SCHEMA = {
    "target": "outcome",
    "classes": ["well", "ill"],
    "columns": {
        "age": {"low": 0, "high": 100},
        "bmi": {"low": 10, "high": 50, "flag": True},
        "sex": ["f", "m"],
        "grade": [1, 2, 3],
    },
}


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    ill = rng.random(count) < 0.5
    age = np.where(ill, 70, 35) + rng.integers(-20, 20, count)
    return {
        "age": [int(a) for a in age],
        "bmi": [round(float(b), 1) for b in rng.uniform(18, 40, count)],
        "sex": [str(s) for s in rng.choice(["f", "m"], count)],
        "grade": [int(g) for g in rng.integers(1, 4, count)],
        "outcome": ["ill" if one else "well" for one in ill],
        "site": [f"s{k % 3}" for k in range(count)],
        "part": ["test" if k % 5 == 0 else "train" for k in range(count)],
    }


def write(folder, values=None, *, name="x.csv", schema=SCHEMA):
    table = pa.table(values or rows(60))
    file = folder / name
    csv.write_csv(table, file) if file.suffix == ".csv" else parquet.write_table(table, file)
    if schema:
        (folder / "x.schema.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    return file


def test_every_rule_of_the_schema(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text(
        "age,bmi,sex,grade,outcome\n"
        "50,30,f,1,well\n"
        "NA,NaN,,2,ill\n"
        "250,-5,x,9,ill\n"
        "0,50, m ,3,well\n"
    )
    (tmp_path / "x.schema.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    arrays = Table(path=str(file), share=0).arrays()
    expected = [
        [0, 0, 0, 1, 0, 1, 0, 0],
        [0, 0, 1, 0, 0, 0, 1, 0],  # missing: the middle, a flag, none of the values
        [1, -1, 0, 0, 0, 0, 0, 0],  # beyond: clipped, none of the values
        [-1, 1, 0, 0, 1, 0, 0, 1],
    ]
    np.testing.assert_allclose(arrays["train_x"], expected)
    assert arrays["train_y"].tolist() == [0, 1, 1, 0]
    assert arrays["class_names"].tolist() == ["well", "ill"]


def test_a_row_changes_no_other_rows_features(tmp_path):
    """Else a clipped gradient would not account for what one record moves."""
    values = rows(40)
    first = Table(path=str(write(tmp_path, values)), share=0).arrays()
    values["age"][7], values["sex"][7], values["bmi"][7] = 10**6, "zebra", None
    second = Table(path=str(write(tmp_path, values)), share=0).arrays()
    others = np.arange(40) != 7
    np.testing.assert_array_equal(first["train_x"][others], second["train_x"][others])
    assert not np.array_equal(first["train_x"][7], second["train_x"][7])


def test_csv_and_parquet_are_the_same_table(tmp_path):
    (tmp_path / "p").mkdir()
    a = Table(path=str(write(tmp_path)), client="site").arrays()
    b = Table(path=str(write(tmp_path / "p", name="x.parquet")), client="site").arrays()
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_three_ways_to_a_test_set(tmp_path):
    file = str(write(tmp_path))
    other = write(tmp_path, rows(10, seed=1), name="later.csv", schema=None)
    share, split = Table(path=file).load(), Table(path=file, split="part").load()
    given = Table(path=file, test=str(other)).load()
    assert [len(d.test_y) for d in (share, split, given)] == [12, 12, 10]
    assert [len(d.train_y) for d in (share, split, given)] == [48, 48, 60]
    assert Table(path=file).load().sha256 == share.sha256
    assert isinstance(Table(path=file), Data)


BAD = {
    "unknown class": ({"outcome": "dead"}, "row 4: outcome is 'dead', .* classes are well, ill"),
    "no class": ({"outcome": None}, "row 4: outcome is ''"),
    "a text": ({"age": "old"}, "row 4: age is 'old', not a number"),
    "no owner": ({"site": None}, "row 4 has no site"),
    "infinite": ({"age": "-inf"}, ""),
}


@pytest.mark.parametrize("fault", BAD)
def test_faults_name_file_and_row(tmp_path, fault):
    change, told = BAD[fault]
    values = rows(20)
    for name, value in change.items():
        values[name] = [None if v is None else str(v) for v in values[name]]
        values[name][3] = value
    file = write(tmp_path, values)
    table = Table(path=str(file), client="site", share=0)
    if not told:  # clipped, as any number beyond the range
        assert table.arrays()["train_x"][3, 0] == -1
        return
    with pytest.raises(ConfigError, match=told) as error:
        table.arrays()
    assert str(error.value).startswith(str(file))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"columns": {"outcome": ["well"]}}, "outcome is the target"),
        ({"columns": {"age": {"low": 5, "high": 5}}}, "low < high"),
        ({"columns": {"age": [1, 1]}}, "each once"),
        ({"columns": {"age": {"min": 5}}}, "age: give a list of values, or low and high"),
        ({"columns": {"weight": ["a"]}}, "has no column weight; it has age, bmi"),
        ({"classes": ["well"]}, "give 2 to"),
        ({"more": 1}, "and nothing else"),
    ],
)
def test_a_wrong_schema_is_told(tmp_path, change, told):
    file = write(tmp_path, schema={**SCHEMA, **change})
    with pytest.raises(ConfigError, match=told):
        Table(path=str(file)).arrays()


def test_without_a_schema_nothing_is_read(tmp_path):
    file = write(tmp_path, schema=None)
    with pytest.raises(ConfigError, match=r"no schema .* 'fedsofim data schema TABLE"):
        Table(path=str(file)).arrays()


def test_a_draft_is_a_schema_that_says_it_must_be_checked(tmp_path):
    values = {k: v for k, v in rows(60).items() if k not in ("site", "part")}
    values["note"] = [f"text {k}" for k in range(60)]
    text = drafted("x.csv", "outcome", values)
    assert "check every line" in text
    assert "# note: 60 different texts; left out" in text
    (tmp_path / "s.yaml").write_text(text)
    found = read_schema(tmp_path / "s.yaml")
    assert found.classes.names == ("ill", "well")
    assert list(found.columns) == ["age", "bmi", "sex", "grade"]
    assert found.columns["grade"].values == ("1", "2", "3")
    assert found.columns["age"].low <= min(values["age"])
    assert found.columns["age"].high >= max(values["age"])


def test_what_is_odd_is_shown_and_what_is_wrong_is_told(tmp_path):
    values = rows(60)
    values["age"][0], values["sex"][1] = 300, "other"
    file = write(tmp_path, values)
    found = inspect(file)
    assert not found.faults
    assert "age: 1 beyond what is declared, clipped to the range" in found.doubts
    assert "sex: 1 beyond what is declared, coded as none of them" in found.doubts
    assert ("records", "60", "yes") in found.lines
    assert "column sex" in shown(found)
    values["outcome"][2] = "?"
    assert "row 3: outcome" in inspect(write(tmp_path, values)).faults[0]


def test_from_a_csv_to_a_model_and_its_predictions(inside, tmp_path):
    write(tmp_path, rows(600), schema=None)
    done = inside("data", "schema", "x.csv", "--target", "outcome", "--without", "site,part")
    assert done.returncode == 0, done.stderr
    assert "Check every line" in done.stdout
    assert_refused(inside("data", "schema", "x.csv", "--target", "outcome"), "exists already")
    assert inside("data", "check", "x.csv").returncode == 0
    given = ["dataset=table", "dataset.path=x.csv", "dataset.target=outcome", "dataset.client=site"]
    done = inside("run", *given, "partition=natural", "rounds=5", "output.dir=out")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["clients"], summary["dataset"]) == (3, "table")
    assert summary["accuracy"] > 0.8
    assert "settings=auto" in (tmp_path / "out" / "config.yaml").read_text()
    done = inside("predict", "out", "x.csv")
    assert done.stdout.splitlines()[0] == "record,label,probability,p_ill,p_well"
    assert len(done.stdout.splitlines()) == 601
    assert "600 records, " in done.stderr
    made = ["dataset=table", "dataset.path=x.csv", "dataset.share=0", "out=x.npz"]
    assert inside("features", *made).returncode == 0
    done = inside("data", "check", "x.npz", "--classes", "ill,well")
    assert done.returncode == 0, done.stdout
    assert "train records                yes          600" in done.stdout
    assert inside("data", "check", "x.npz", "--classes", "well,dead").returncode == 2
