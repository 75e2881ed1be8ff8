import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from fedsofim.core.threads import in_order, one_thread_a_product, thread_count


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_products_have_one_thread_meanwhile_and_then_what_they_had():
    before = blas_threads()
    with one_thread_a_product():
        assert blas_threads() == {1}
        with one_thread_a_product():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == before


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OPENBLAS_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "4"}, 1),
        ({"OMP_NUM_THREADS": "many"}, None),
        ({"OMP_NUM_THREADS": "0"}, None),
        ({}, None),
    ],
)
def test_the_environment_says_how_many_threads_else_the_machine(monkeypatch, said, count):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert thread_count() == (count or len(os.sched_getaffinity(0)))


def test_results_come_in_order_from_several_threads():
    seen = set()

    def work(i):
        seen.add(threading.get_ident())
        time.sleep(0.002 * (i % 3))
        return i * i

    assert list(in_order(work, range(20), threads=3)) == [i * i for i in range(20)]
    assert threading.get_ident() in seen
    assert len(seen) == 3


def test_what_one_of_several_threads_calls_has_no_more_of_them(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    def work(i):
        time.sleep(0.002)
        return thread_count()

    assert list(in_order(work, range(9))) == [1] * 9  # the caller's thread among them
    assert list(in_order(work, range(1))) == [3]
    assert thread_count() == 3


def test_few_results_are_held_however_many_there_are():
    class Result:
        pass

    alive, most = weakref.WeakSet(), 0

    def work(i):
        result = Result()
        alive.add(result)
        return result

    for result in in_order(work, range(200), threads=2):
        most = max(most, len(alive))
        del result
    assert most <= 6


def test_what_goes_wrong_in_a_thread_is_raised_and_the_rest_is_not_begun():
    begun = []

    def work(i):
        begun.append(i)
        if i == 3:
            raise ValueError("three")
        return i

    with pytest.raises(ValueError, match="three"):
        list(in_order(work, range(1000), threads=2))
    assert len(begun) < 20


def test_threads_hear_of_the_callers_errstate():
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        list(in_order(lambda x: np.float32(3e38) * x, [np.float32(9)] * 2, threads=2))


RUN = """
import hashlib, sys
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.runs.experiment import begin, prepare
from fedsofim.runs.session import train
e = prepare(parse(compose(sys.argv[1:])))
done = train(e, begin(e))
print(hashlib.sha256(done.state.server.theta.tobytes()).hexdigest(), done.rows[-1]["loss"])
"""


@pytest.mark.parametrize(
    "overrides",
    [
        ["rounds=2"],
        ["rounds=2", "transform=kfc", "aggregation=size"],
        ["rounds=1", "strategy=scaffold", "partition=iid", "partition.clients=300"],
    ],
    ids=" ".join,
)
def test_no_bit_depends_on_the_number_of_threads(root, overrides):
    def run(threads):
        variables = {**os.environ, "PYTHONPATH": str(root)}
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            variables.pop(name, None)
            if threads:
                variables[name] = str(threads)
        return subprocess.run(
            [sys.executable, "-c", RUN, *overrides],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert run(1) == run(2) == run(None)
