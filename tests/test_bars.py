"""Bars of docs/reliability.md that are scripts: a long run, and what happens to a deployment."""

import json
import subprocess
import sys

import pytest


@pytest.fixture
def script(root, environment):
    """Run one of `scripts/`; returns the lines that it printed."""

    def run(name, *arguments, seconds):
        done = subprocess.run(
            [sys.executable, str(root / "scripts" / name), *map(str, arguments)],
            env={**environment, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize("rounds", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_memory_and_files_stay_as_they_are(script, rounds):
    *seen, last = script("soak.py", "--rounds", rounds, seconds=900)
    assert [json.loads(line)["round"] for line in seen] == list(
        range(rounds // 10, rounds + 1, rounds // 10)
    )
    assert last.endswith(" files")


@pytest.mark.slow
def test_a_deployment_survives_all_that_may_happen_to_it(script):
    """One trial; docs/reliability.md tells of twenty."""
    all_of_them = ("--clients", 8, "--rounds", 12, "--trials", 1, "--faults", 7, "--shuffle")
    *_, line = script("chaos_deployment.py", *all_of_them, "--seed", 700, seconds=1800)
    assert len(set(json.loads(line)["kinds"])) == 7


@pytest.mark.slow
def test_devices_at_a_superlink_are_counted_and_answer_every_round(script):
    """A few of them, as docs/performance.md does with a thousand."""
    few = ("--devices", 6, "--rounds", 2, "--quiet", 5, "--processes", 2, "--think", 0.2)
    told = json.loads("\n".join(script("bench_devices.py", *few, seconds=300)))
    (seen,) = told["seen"]
    assert (seen["failed calls"], seen["devices lost"], len(seen["rounds"])) == ({}, 0, 2)
    for each in (*seen["hello"], *seen["rounds"]):
        assert each["calls of the ServerApp"]["confirm-message-received"] == 6
        assert each["SuperLink, CPU s"] > 0
    assert 1 < seen["idle"]["calls a second"] < 4  # each looks every three seconds
