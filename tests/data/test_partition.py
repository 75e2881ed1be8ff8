import json
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from fedsofim.core.errors import ConfigError
from fedsofim.data.partition import Partition, statistics

KINDS = {
    "iid": Partition(kind="iid", clients=20),
    "dirichlet": Partition(kind="dirichlet", clients=20, alpha=0.5),
    "uneven": Partition(kind="dirichlet", clients=20, alpha=0.01),
    "even": Partition(kind="dirichlet", clients=20, alpha=1e6),
    "classes": Partition(kind="classes", clients=20, classes_per_client=3),
    "one class": Partition(kind="classes", clients=20, classes_per_client=1),
    "powerlaw": Partition(kind="powerlaw", clients=20),
    "steep": Partition(kind="powerlaw", clients=20, exponent=40),
}


@pytest.fixture(params=KINDS)
def partition(request):
    return KINDS[request.param]


@pytest.fixture
def labels(rng):
    return rng.integers(0, 10, 5000)


def assert_each_record_once(parts, records):
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(records))
    assert all((np.diff(part) > 0).all() for part in parts)


def test_every_record_goes_to_exactly_one_client(partition, labels):
    parts = partition.split(labels, 10, seed=0)
    assert len(parts) == 20
    assert min(map(len, parts)) >= 1
    assert_each_record_once(parts, 5000)


def test_blocks_do_not_show_in_a_division(partition, labels, monkeypatch):
    whole = partition.split(labels, 10, seed=3)
    monkeypatch.setattr("fedsofim.data.partition.SORTED", 999)
    parts = partition.split(labels, 10, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_dealing_records_out_takes_few_bytes_for_each(rng, kind, monkeypatch):
    monkeypatch.setattr("fedsofim.data.partition.SORTED", 4096)
    labels = rng.integers(0, 10, 300_000).astype(np.uint8)
    tracemalloc.start()
    parts = Partition(kind=kind, clients=20).split(labels, 10, seed=0)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert_each_record_once(parts, len(labels))
    assert held < 4.5 * len(labels)
    assert peak < 15 * len(labels)


def test_the_same_seed_gives_the_same_division(partition, labels):
    one, same, other = (partition.split(labels, 10, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(
    st.sampled_from(["iid", "dirichlet", "classes", "powerlaw"]),
    st.integers(1, 60),
    st.integers(0, 200),
    st.integers(2, 6),
    st.floats(1e-3, 1e3),
    st.integers(0, 2**40),
)
def test_any_division_is_whole(kind, clients, extra, classes, alpha, seed):
    labels = np.random.default_rng(seed).integers(0, classes, clients + extra)
    own = max(2, -(-classes // clients))
    partition = Partition(kind=kind, clients=clients, alpha=alpha, classes_per_client=own)
    parts = partition.split(labels, classes, seed)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert_each_record_once(parts, clients + extra)


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 30), st.floats(1e-2, 1e6))
def test_every_client_gets_its_least_number_of_records(clients, least, extra, alpha):
    labels = np.arange(clients * least + extra) % 3
    partition = Partition(kind="dirichlet", clients=clients, alpha=alpha, min_size=least)
    parts = partition.split(labels, 3, seed=0)
    assert min(map(len, parts)) >= least
    assert_each_record_once(parts, len(labels))


def test_by_default_a_dirichlet_client_has_a_third_of_the_mean(labels):
    sizes = [len(part) for part in KINDS["uneven"].split(labels, 10, seed=0)]
    assert min(sizes) == 80  # 0.32 of 250
    cifar = np.arange(50_000) % 10
    parts = KINDS["uneven"].split(cifar, 10, seed=0)
    assert min(map(len, parts)) == 800


def test_clients_hold_only_so_many_classes(labels):
    for s in (1, 3):
        partition = Partition(kind="classes", clients=20, classes_per_client=s)
        held = [len(np.unique(labels[part])) for part in partition.split(labels, 10, seed=0)]
        assert max(held) <= s
        assert np.mean(held) == s


def test_scarce_classes_leave_no_client_empty():
    labels = np.repeat([0, 1], [3, 997])
    partition = Partition(kind="classes", clients=100, classes_per_client=1)
    parts = partition.split(labels, 2, seed=0)
    assert min(map(len, parts)) >= 1
    assert max(len(np.unique(labels[part])) for part in parts) == 1
    assert_each_record_once(parts, 1000)


def test_alpha_says_how_uneven(labels):
    kl = [
        statistics(KINDS[name].split(labels, 10, 0), labels, 10)["kl_mean"]
        for name in ("even", "dirichlet", "uneven")
    ]
    assert kl[0] < 0.05 < kl[1] < kl[2]


def test_dirichlet_shares_have_the_spread_of_their_draw():
    labels, n, alpha = np.zeros(200_000, int), 50, 2.0
    sizes = []
    for seed in range(20):
        parts = Partition(kind="dirichlet", clients=n, alpha=alpha, min_size=1).split(
            labels, 1, seed
        )
        sizes += [len(part) / len(labels) for part in parts]
    variance = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    assert np.var(sizes) == pytest.approx(variance, rel=0.15)


def test_statistics_are_scipys(partition, labels):
    parts = partition.split(labels, 10, seed=0)
    record = statistics(parts, labels, 10)
    counts = np.array(record["counts"])
    assert counts.shape == (20, 10)
    assert counts.sum() == 5000
    np.testing.assert_array_equal(record["sizes"], [len(part) for part in parts])
    np.testing.assert_array_equal(record["absent"], (counts == 0).sum(axis=1))
    kl = [entropy(row / row.sum(), np.full(10, 0.1)) for row in counts]
    np.testing.assert_allclose(record["kl"], kl, atol=1e-6)
    assert record["kl_mean"] == pytest.approx(np.mean(kl))
    assert record["size_std"] == pytest.approx(np.std(record["sizes"]))
    assert json.loads(json.dumps(record, allow_nan=False)) == record


@pytest.mark.parametrize("exponent", [0, 0.5, 1, 1.7])
def test_sizes_follow_the_power_law_that_is_stated(labels, exponent):
    parts = Partition(kind="powerlaw", clients=20, exponent=exponent).split(labels, 10, seed=3)
    weights = [i**-exponent for i in range(1, 21)]
    stated = [5000 * w / sum(weights) for w in weights]
    assert max(abs(len(part) - size) for part, size in zip(parts, stated, strict=True)) <= 1


def test_a_power_law_says_nothing_of_classes():
    """Records are dealt out at random: a large client has all classes as often as all have them."""
    labels = np.repeat(np.arange(4), 25_000)  # in order, as many files are
    parts = Partition(kind="powerlaw", clients=5, exponent=1).split(labels, 4, seed=0)
    for part in parts:
        expected = len(part) / 4
        counts = np.bincount(labels[part], minlength=4)
        assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-squared, 0.1 % of 3


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "classes", "powerlaw"])
def test_ten_thousand_clients_are_quick(rng, kind):
    labels = rng.integers(0, 9, 90_000)
    began = time.perf_counter()
    parts = Partition(kind=kind, clients=10_000).split(labels, 9, seed=0)
    assert time.perf_counter() - began < 5  # well under one second when nothing else runs
    assert_each_record_once(parts, 90_000)


def test_one_client_holds_all(partition, labels):
    alone = Partition(kind=partition.kind, clients=1, classes_per_client=10)
    assert_each_record_once(alone.split(labels, 10, 0), 5000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 0}, "clients=0: must be at least 1"),
        ({"alpha": 0.0}, "alpha=0.0"),
        ({"alpha": float("inf")}, "alpha=inf"),
        ({"alpha": float("nan")}, "alpha=nan"),
        ({"classes_per_client": 0}, "classes_per_client=0"),
        ({"min_size": 0}, "min_size=0"),
        ({"exponent": -1.0}, "exponent=-1.0: must be a finite number >= 0"),
        ({"exponent": float("inf")}, "exponent=inf"),
        ({"kind": "powerlaw", "min_size": 251}, "20 clients would need 5020 records"),
        ({"clients": 5001}, "more clients than the 5000 records"),
        ({"min_size": 251}, "20 clients would need 5020 records, there are 5000"),
        ({"kind": "classes", "classes_per_client": 11}, "there are only 10 classes"),
        ({"kind": "classes", "clients": 4}, "4 clients with 2 each can't hold all 10 classes"),
    ],
)
def test_impossible_divisions_are_refused(labels, changes, message):
    with pytest.raises(ConfigError, match=message):
        Partition(**{"kind": "dirichlet", "clients": 20} | changes).split(labels, 10, 0)
