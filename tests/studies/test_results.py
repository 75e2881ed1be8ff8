"""The store that sweeps, searches and tables share, and the processes that fill it."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from fedsofim.studies import processes, results
from fedsofim.studies.results import Results, pack, unpack


def squares(done):
    """Work that squares the number a config is, and notes what it was asked for."""

    def work(configs):
        def run(todo):
            for i in reversed(todo):  # in any order
                done.append(configs[i])
                yield i, {"square": int(configs[i]) ** 2}

        return run

    return work


def test_a_run_is_done_once_and_given_in_order(tmp_path):
    done, shown, file = [], [], tmp_path / "deep" / "results.jsonl"
    asked = ["3", "1", "3", "2"]
    store = Results(file)
    rows = store.complete(asked, squares(done)(asked), lambda *told: shown.append(told))
    assert [row["square"] for row in rows] == [9, 1, 9, 4]
    assert sorted(done) == ["1", "2", "3"]
    assert shown == [(0, 3), (1, 3), (2, 3), (3, 3)]
    more = ["2", "5"]
    again = Results(file).complete(more, squares(done)(more))
    assert [row["square"] for row in again] == [4, 25]
    assert done[3:] == ["5"]
    assert Results(file).get("4") is None


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_that_a_crash_cut_costs_that_run_only(tmp_path, cut):
    done, file, asked = [], tmp_path / "r.jsonl", ["1", "2", "3"]
    Results(file).complete(asked, squares(done)(asked))
    file.write_bytes(file.read_bytes()[:-cut])
    rows = Results(file).complete(asked, squares(done)(asked))
    assert [row["square"] for row in rows] == [1, 4, 9]
    assert done[3:] == ([] if cut == 1 else ["1"])  # only the line's end was missing
    assert [Results(file).get(one) for one in asked] == rows


def test_another_release_is_another_run(tmp_path, monkeypatch):
    done, file = [], tmp_path / "r.jsonl"
    Results(file).complete(["7"], squares(done)(["7"]))
    monkeypatch.setattr(results, "__version__", "99.0")
    Results(file).complete(["7"], squares(done)(["7"]))
    assert done == ["7", "7"]


def test_lines_that_are_not_results_are_passed_over(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_bytes(b"[1]\n\xff\xfe\n{}\nnull\n" + json.dumps({"run": 3}).encode() + b"\n")
    done = []
    assert Results(file).complete(["2"], squares(done)(["2"])) == [{"square": 4}]


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Results(tmp_path / "file" / "r.jsonl").complete(["2"], squares([])(["2"]))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_with_the_path(tmp_path):
    (tmp_path / "r.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left.*r\.jsonl"):
        Results(tmp_path / "r.jsonl").complete(["2"], squares([])(["2"]))


def test_predictions_survive(rng):
    classes = rng.integers(0, 100, 1000).astype(np.int16)
    np.testing.assert_array_equal(unpack(pack(classes)), classes)


def test_leaving_early_ends_the_processes():
    found = processes.each(time.sleep, [[0], [600], [600]], jobs=2)
    assert next(found) is None
    began = time.monotonic()
    found.close()
    assert time.monotonic() - began < 60  # not the ten minutes that they would take


def test_an_error_in_a_process_comes_through():
    with pytest.raises(ZeroDivisionError):
        list(processes.each(divmod, [[1, 0], [3, 2]], jobs=2))


def children(pid):
    """The processes that a process started, of those that still run."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if int(parent) == pid and state != "Z":
            found.add(int(name.split()[0]))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_stopped_says_how_to_go_on_and_leaves_no_process(
    start, cli, small, tmp_path, number
):
    grid = [*small[:3], "seed=0,1", "output.dir=s", "--jobs", "2"]
    process = start("sweep", "rounds=1000000", *grid)
    deadline = time.monotonic() + 60
    while len(workers := children(process.pid)) < 3:  # two, and Python's own
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    last = out.splitlines()[-1]
    assert last.startswith("Stopped. Go on with: fedsofim sweep rounds=1000000")
    assert last.endswith("output.dir=s")
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (tmp_path / "s" / "sweep.json").is_file()
    assert cli("sweep", "rounds=2", *grid).returncode == 2  # another sweep: this one is kept
