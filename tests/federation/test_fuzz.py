"""Thousands of mutated messages: no exception gets out, and memory stays small."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PATHS = os.pathsep.join(str(path) for path in (HERE.parents[1], HERE.parent, HERE))


def fuzz(what: str, count: int, seed: int) -> dict[str, int]:
    """What a process of its own saw, so that its memory is its own, too."""
    command = [sys.executable, str(HERE / "fuzz.py"), what, str(count), str(seed)]
    variables = {**os.environ, "PYTHONPATH": PATHS, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return seen


def check_server(count: int, seed: int) -> None:
    seen = fuzz("server", count, seed)
    # Some mutations change nothing that matters: else the fuzz would only test the first check.
    assert min(seen["taken"], seen["joined"]) > count / 100
    assert min(seen["dropped"], seen["turned away"]) > count / 10
    assert seen["megabytes"] < 1000


def check_client(count: int, seed: int) -> None:
    seen = fuzz("client", count, seed)
    assert seen["answered"] > 0
    assert seen["refused"] > count / 10
    assert seen["megabytes"] < 1000


def test_a_server_survives_what_it_is_sent() -> None:
    check_server(2_000, seed=0)


def test_an_owner_survives_what_it_is_asked() -> None:
    check_client(500, seed=0)


@pytest.mark.slow
def test_a_server_survives_a_hundred_thousand() -> None:
    check_server(100_000, seed=1)


@pytest.mark.slow
def test_an_owner_survives_ten_thousand() -> None:
    check_client(10_000, seed=1)
