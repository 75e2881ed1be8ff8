"""A look at what runs left."""

from refusal import assert_refused


def test_show_tells_a_run_and_a_folder_of_runs(inside, tmp_path, small):
    assert inside("run", *small, "output.dir=all/mine").returncode == 0
    shown = inside("show", "all/mine").stdout
    assert "accuracy %" in shown
    assert "spent: epsilon 10" in shown
    assert inside("run", "settings=auto", "rounds=6", "output.dir=all/auto").returncode == 0
    lines = inside("show", "all").stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["auto", "mine"]
    assert all("6 rounds, accuracy 0." in line for line in lines)
    (tmp_path / "empty").mkdir()
    assert_refused(inside("show", "empty"), "empty: holds no run; train one")
    (tmp_path / "empty" / "sweep.json").write_text("{}")
    assert_refused(inside("show", "empty"), "'fedsofim report empty' shows its sweeps")
    assert_refused(inside("show", "nowhere"), "nowhere: not a run directory")


def test_show_tells_how_to_go_on(inside, tmp_path, small):
    assert inside("run", *small, "output.dir=mine").returncode == 0
    config = tmp_path / "mine" / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 6", "rounds: 9"))
    shown = inside("show", "mine").stdout
    assert "Not finished: 6 of 9 rounds. Continue with: fedsofim resume mine" in shown


def test_metrics_that_lost_their_rows_are_told(inside, tmp_path, small):
    inside("run", *small, "output.dir=mine")
    (tmp_path / "mine" / "metrics.jsonl").write_text("garbage\n")
    done = inside("show", "mine")
    assert_refused(done, "metrics.jsonl: damaged (it should begin with rounds 1 to 6)")
