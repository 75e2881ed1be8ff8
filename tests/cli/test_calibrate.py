"""The noise for a budget, and the budget for a noise."""

import json
import resource

import pytest
from refusal import assert_refused


def test_calibrate_as_a_table_and_as_json(inside):
    done = inside("calibrate", "privacy.epsilon=10", "rounds=70", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    row = json.loads(done.stdout)
    assert {"epsilon", "delta", "releases", "noise_multiplier", "noise_std", "mu"} <= row.keys()
    assert row["epsilon"] <= 10
    assert row["noise_multiplier"] == pytest.approx(8.36474, rel=1e-5)
    assert row["noise_std"] == pytest.approx(83.6474, rel=1e-5)
    assert row["mu"] == pytest.approx(2.000446, rel=1e-5)
    assert (row["releases"], row["delta"]) == (70, 1e-5)
    table = inside("calibrate", "privacy.epsilon=10", "rounds=70").stdout
    shown = dict(line.split() for line in table.splitlines())
    assert shown.keys() == row.keys()
    assert {name: float(value) for name, value in shown.items()} == pytest.approx(row, rel=1e-5)


@pytest.mark.parametrize("extra", [[], ["privacy.adjacency=add-remove"], ["strategy=fedfc"]])
def test_calibrate_goes_there_and_back(inside, extra):
    there = json.loads(inside("calibrate", "privacy.epsilon=2.5", *extra, "--json").stdout)
    z = f"privacy.noise_multiplier={there['noise_multiplier']}"
    back = json.loads(inside("calibrate", z, *extra, "--json").stdout)
    assert back["epsilon"] == pytest.approx(2.5, rel=1e-6)
    assert back["noise_multiplier"] == there["noise_multiplier"]


def test_calibrate_shares_the_noise_in_the_aggregate(inside):
    shared = ["privacy.trust=aggregate", "aggregation=size", "partition.clients=100"]
    row = json.loads(inside("calibrate", *shared, "--json").stdout)
    assert row["client_noise_std"] == pytest.approx(row["noise_std"] / 10)


def test_calibrate_needs_privacy(inside):
    assert_refused(inside("calibrate", "privacy=none"), "a run without privacy needs no noise")


def test_calibrate_starts_quickly(cli):
    def used():
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    before = used()
    cli("calibrate", "--json")
    assert used() - before < 2  # processor time, which a busy machine stretches little
