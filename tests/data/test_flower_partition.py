"""Flower Datasets' partitioners, by name: the same records to the same clients as under Flower."""

import sys

import numpy as np
import pytest
from refusal import assert_refused

datasets = pytest.importorskip("datasets")
flower = pytest.importorskip("flwr_datasets.partitioner")

from fedsofim.config.compose import compose
from fedsofim.config.parts import own_parts
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.data.flower_partition import OTHERS, FlowerDivision, section

LABELS = np.random.default_rng(0).integers(0, 4, 600)
OWNERS = np.array([f"site {k}" for k in np.random.default_rng(1).integers(0, 7, 600)])
GIVEN = {  # what has no default
    "flwr:dirichlet": {"alpha": 0.5},
    "flwr:inner-dirichlet": {"alpha": 0.5, "partition_sizes": [100, 200, 300]},
    "flwr:size": {"partition_sizes": [100, 200, 250]},
    "flwr:pathological": {"num_classes_per_partition": 2},
    "flwr:shard": {"num_shards_per_partition": 2, "keep_incomplete_shard": True},
    "flwr:continuous": {"strictness": 0.5},
    "flwr:grouped-natural-id": {"group_size": 2},
    "flwr:distribution": {
        "distribution_array": [[1, 2, 3], [3, 2, 1], [1, 1, 1], [2, 1, 2]],
        "num_unique_labels_per_partition": 1,
        "preassigned_num_samples_per_label": 2,
    },
}
KINDS = [
    *("flwr:iid", "flwr:linear", "flwr:square", "flwr:exponential", "flwr:natural-id"),
    *GIVEN,
]
COUNTED = {"flwr:size": 3, "flwr:inner-dirichlet": 3, "flwr:natural-id": 7}
COUNTED |= {"flwr:grouped-natural-id": 4, "flwr:distribution": 12}


def division(kind, **more):
    """As a config gives it."""
    values = section(kind)
    values["args"] |= GIVEN.get(kind, {})
    values["clients"] = COUNTED.get(kind, 5)
    return FlowerDivision(**values | more)


def test_every_partitioner_that_divides_records_is_tried_here():
    names = {f"flwr:{name}" for name in OTHERS}
    known = {n for n in flower.__all__ if n != "Partitioner"}
    assert len(known) == len(names | {*KINDS})


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_division(kind):
    one, same, other = (division(kind).split(LABELS, 4, s, OWNERS) for s in (1, 1, 2))
    assert len(one) == COUNTED.get(kind, 5)
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    held = np.concatenate(one)
    assert len(np.unique(held)) == len(held)
    natural = "natural-id" in kind
    if "natural" not in kind:
        assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    if natural:
        assert sum(len({*OWNERS[part]}) for part in one) == 7


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        ("flwr:linear", lambda: flower.LinearPartitioner(5)),
        ("flwr:DirichletPartitioner", lambda: flower.DirichletPartitioner(5, "label", 0.3)),
        ("flwr:shard", lambda: flower.ShardPartitioner(5, "label", num_shards_per_partition=2)),
    ],
)
def test_seed_42_is_what_a_flower_app_has(kind, theirs):
    """`FederatedDataset` shuffles with 42, and partitioners draw with 42, unless told otherwise."""
    its = {"dirichlet": {"alpha": 0.3}, "shard": {"num_shards_per_partition": 2}}
    values = section(kind)
    values["args"] |= next((v for k, v in its.items() if k in kind.lower()), {})
    ours = FlowerDivision(**values | {"clients": 5, "seed": 42}).split(LABELS, 4, seed=9)
    partitioner = theirs()
    records = datasets.Dataset.from_dict({"label": LABELS.tolist(), "i": list(range(600))})
    partitioner.dataset = records.shuffle(seed=42)
    for client, part in enumerate(ours):
        assert sorted(partitioner.load_partition(client)["i"]) == part.tolist()


def test_records_that_are_left_over_are_nobodys():
    parts = division("flwr:size").split(LABELS, 4, 0)
    assert [len(part) for part in parts] == [100, 200, 250]


def test_a_config_holds_its_arguments():
    values = compose(["partition=flwr:dirichlet", "partition.args.alpha=0.3", "seed=3"])
    assert values["partition"]["args"]["alpha"] == 0.3
    made = parse(values).partition
    assert made.name == "flwr:dirichlet"
    assert made.clients == 20
    assert list(own_parts(values)) == []
    sizes = ["partition=flwr:size", "partition.args.partition_sizes=[10,20,30]"]
    assert parse(compose(sizes)).partition.clients == 3


def test_a_run_with_a_natural_division(inside, tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.standard_normal((120, 5)) + y[:, None]
    whose = np.array(["a", "b", "c", "d", "e"])[np.arange(120) % 5]
    np.savez(tmp_path / "x.npz", train_x=x, train_y=y, test_x=x, test_y=y, train_client_id=whose)
    given = ["run", "dataset=npz", "dataset.path=x.npz", "rounds=2", "output.dir=out"]
    done = inside(*given, "partition=flwr:grouped-natural-id", "partition.args.group_size=2")
    assert done.returncode == 0, done.stderr
    assert "3 clients (flwr:grouped-natural-id)" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["partition=flwr:dirichle"], ["unknown", "did you mean dirichlet?"]),
        (["partition=flwr:vertical-even"], ["divides columns, and not records"]),
        (["partition=flwr:dirichlet"], ["partition.args.alpha: a value is missing"]),
        (
            ["partition=flwr:dirichlet", "partition.args.alhpa=1"],
            ["partition.args.alhpa: no such key", "did you mean partition.args.alpha?"],
        ),
        (
            ["partition=flwr:dirichlet", "partition.args.alpha=-1"],
            ["partition=flwr:dirichlet: ", "zero"],
        ),
        (
            ["partition=flwr:dirichlet", "partition.args.alpha=much"],
            ["partition=flwr:dirichlet: "],
        ),
        (
            ["partition=flwr:pathological", "partition.args.num_classes_per_partition=40"],
            ["partition=flwr:pathological: "],
        ),
        (["partition=flwr:natural-id"], ["partition=natural: needs"]),
        (
            ["partition=flwr:natural-id", "partition.clients=3"],
            ["partition_by=client: the data do not say whose each record is"],
        ),
        (
            ["partition=flwr:shard", "partition.args.partition_by=hospital"],
            ["partition_by=hospital: choose label or client"],
        ),
        (["partition=flwr:exponential", "partition.clients=40"], ["partition=flwr:exponential: "]),
    ],
)
def test_mistakes_are_one_line(inside, given, words):
    done = inside("run", *given, "rounds=1")
    assert_refused(done, *words)


def test_without_the_extra_a_line_says_what_to_install(inside, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    done = inside("run", "partition=flwr:iid", "rounds=1")
    assert_refused(done, "partition=flwr:iid needs flwr_datasets", "pip install 'fedsofim[hf]'")


def test_a_wrong_number_of_clients_is_refused():
    with pytest.raises(ConfigError, match="flwr:natural-id: makes 7 clients, not 3"):
        division("flwr:natural-id", clients=3).split(LABELS, 4, 0, OWNERS)
