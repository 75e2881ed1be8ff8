"""The program as a person meets it."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import yaml
from refusal import assert_refused

from fedsofim import __version__
from fedsofim.cli.main import COMMANDS
from fedsofim.config.compose import CONF, compose
from fedsofim.config.help import COLUMN, manual
from fedsofim.config.parts import GROUPS
from fedsofim.config.schema import KINDS
from fedsofim.models import head_sums
from fedsofim.strategies import STRATEGIES


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run privacy.epsilon=0", ["privacy.epsilon=0.0: must be > 0"]),
        ("run strategy=fedfoo", ["strategy=fedfoo: unknown; choose one of", *STRATEGIES]),
        ("run dataset.path=nothing.npz", ["nothing.npz: there is no such file"]),
        ("calibrate privacy.delta=2", ["privacy.delta=2.0: must be between 0 and 0.01"]),
        ("resume nowhere", ["nowhere: not a run directory"]),
    ],
)
def test_a_mistake_ends_the_process(cli, tmp_path, arguments, words):
    assert_refused(cli(*arguments.split()), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_run_as_a_process(cli, tmp_path, small):
    done = cli("run", *small, "output.dir=mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "mine" / "summary.json").is_file()


def test_a_terminal_with_few_characters_shows_what_it_can(cli, tmp_path, small, environment):
    environment |= {"PYTHONIOENCODING": "ascii"}
    done = cli("run", *small, "output.dir=mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert "round 1 of 6 ?" in done.stdout


def test_a_file_that_cannot_be_replaced_is_told_by_its_own_name(inside, tmp_path, small, arrays):
    inside("run", *small, "output.dir=mine")
    (tmp_path / "there").mkdir()
    done = inside("predict", "mine", "small.npz", "--out", "there")
    assert (done.returncode, done.stderr) == (1, "fedsofim: there: Is a directory\n")


def test_a_folder_that_was_removed_is_told(tmp_path, environment):
    (tmp_path / "gone").mkdir()
    command = f"rmdir ../gone; {sys.executable} -m fedsofim run rounds=1"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path / "gone",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "fedsofim: the current folder is no longer there; change into another\n"


def test_an_epsilon_beyond_all_bounds_has_a_card(inside, small, tmp_path):
    assert inside("run", *small, "privacy.epsilon=800", "output.dir=mine").returncode == 0
    assert "would be at most exp(800) times as likely" in (tmp_path / "mine/card.md").read_text()


def test_too_little_memory_is_one_line(inside, monkeypatch):
    def much(arguments):
        raise MemoryError("Unable to allocate 2.91 TiB")

    monkeypatch.setattr("fedsofim.cli.list.main", much)
    done = inside("list")
    assert done.returncode == 1
    assert done.stderr == "fedsofim: there is not enough memory (Unable to allocate 2.91 TiB)\n"


# Bad input


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("privacy.epsilon=0", ["privacy.epsilon=0", "must be > 0"]),
        ("privacy.epsilon=-3", ["privacy.epsilon=-3"]),
        ("privacy.epsilon=many", ["privacy.epsilon=many: must be a number"]),
        ("privacy.epsilon=null", ["privacy.epsilon", "must be a number"]),
        ("privacy.epsilon=nan", ["privacy.epsilon=nan"]),
        ("privacy.delta=0", ["privacy.delta=0", "between 0 and 0.01"]),
        ("privacy.delta=1", ["privacy.delta=1", "between 0 and 0.01"]),
        ("privacy.delta=0.01", ["privacy.delta=0.01", "below one over the number of records"]),
        ("privacy.clip=inf", ["privacy.clip=inf", "privacy=none"]),
        ("privacy.trust=aggregate", ["aggregation=size", "small client weighs more"]),
        ("privacy.trust=nobody", ["choose one of server, aggregate"]),
        ("privacy=some", ["privacy=some: unknown; choose one of dp, none"]),
        ("strategy=fedfoo", ["strategy=fedfoo: unknown; choose one of", *STRATEGIES]),
        ("strategy=sofin", ["; did you mean sofim?"]),
        ("strategy.name=sofin", ["; did you mean sofim?"]),
        ("strategy.direction=momentun", ["; did you mean momentum?"]),
        ("dataset=pathmist", ["; did you mean pathmnist?"]),
        ("--multirum", ["; did you mean --multirun?"]),
        ("strategy.name=fedfoo", ["strategy.name=fedfoo: unknown", *STRATEGIES]),
        ("strategy.direction=up", ["strategy.direction=up: choose one of momentum, gradient"]),
        ("strategy.lr=0", ["strategy.lr=0", "must be a finite number > 0"]),
        ("strategy.lr=null", ["strategy.lr=None: must be a number"]),
        ("strategy.lrr=1", ["strategy.lrr: no such key; did you mean strategy.lr?"]),
        ("+strategy.lrr=1", ["strategy.lrr: no such key; did you mean lr?"]),
        ("round=3", ["round: no such key; did you mean rounds?"]),
        ("unheard.of=3", ["unheard.of: no such key", "--help"]),
        ("epsilon=1", ["epsilon: no such key; did you mean privacy.epsilon?"]),
        ("eps=1", ["did you mean privacy.epsilon?"]),
        ("strategy.learning_rate=1", ["did you mean strategy.lr?"]),
        ("strategy=fedavg lr=1", ["did you mean client.lr or strategy.lr?"]),
        ("--rounds=5", ["--rounds=5: no such option; did you mean rounds=5?"]),
        ("--epsilon 5", ["--epsilon: no such option; did you mean privacy.epsilon?"]),
        ("--nonsense", ["--nonsense: no such option; choose one of --help, --multirun"]),
        ("--cfg hydra", ["--cfg: hydra: unknown; choose one of job"]),
        ("seed=0,1", ["seed=0,1: several values; try --multirun"]),
        ("dataset=mnist", ["dataset=mnist: unknown; choose one of arrays, bloodmnist, "]),
        ("dataset.name=mnist", ["dataset.name=mnist: unknown; choose one of cifar10, cifar100, "]),
        ("dataset=npz", ["dataset.path: name a .npz file"]),
        ("dataset.path=nothing.npz", ["nothing.npz: there is no such file"]),
        ("dataset.path=3", ["there is no such file"]),
        ("partition.clients=60000", ["partition.clients=60000: more clients than the 50000"]),
        ("partition.clients=0", ["partition.clients=0: must be at least 1"]),
        ("partition.alpha=0", ["partition.alpha=0"]),
        ("rounds=0", ["rounds=0: must be at least 1"]),
        ("=5", ["=5: has no key; give key=value, as in rounds=5"]),
        ("rounds=99999999999", ["rounds=99999999999: at most 10,000,000"]),
        ("privacy.noise_multiplier=1e308", ["noise_multiplier=1e+308: at most 1e30"]),
        ("partition.alpha=1e308", ["partition.alpha=1e+308: at most 1e9"]),
        ("dataset.classes=99999999999", ["classes=99999999999: at most 1,000,000"]),
        ("output.dir=my(2)", ["output.dir=my(2): has characters", "'output.dir=\"my(2)\"'"]),
        ("dataset.path=a=b.npz", ["write 'dataset.path=\"a=b.npz\"'"]),
        ("rounds=1.5", ["rounds=1.5: must be a whole number"]),
        ("rounds=true", ["rounds=True: must be a whole number"]),
        ("seed=-1", ["seed=-1"]),
        ("engine=warp", ["engine=warp: unknown; choose one of", "local"]),
        ("output.checkpoint_every=0", ["output.checkpoint_every=0"]),
        ("~strategy", ["strategy"]),
        ("~dataset", ["dataset"]),
        ("nonsense", ["nonsense: give a value, as in rounds=5"]),
        ("epsilon", ["epsilon: give a value, as in privacy.epsilon=5"]),
        ("dataset=table", ["dataset.path: name a table, .csv or .parquet"]),
        ("dataset=table dataset.path=x.csv", ["x.csv: there is no such file"]),
        ("engine=rya", ["; did you mean ray?"]),
        ("track=wanbd", ["; did you mean wandb?"]),
        ("seed=${nothing}", ["nothing"]),
        ("client=scaffold", ["does not go with strategy=sofim"]),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(inside, tmp_path, overrides, words):
    assert_refused(inside("run", *overrides.split()), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "calibrate"])
def test_all_commands_tell_mistakes_alike(inside, command):
    assert_refused(inside(command, "privacy.epsilon=0"), "privacy.epsilon=0.0: must be > 0")
    assert_refused(inside(command, "strategy=fedfoo"), "choose one of", "sofim")
    assert_refused(inside(command, "roundz=1"), "did you mean rounds?")


def test_bad_files_are_told_and_leave_nothing(inside, tmp_path, arrays):
    bad = {
        "corrupt": b"PK\x03\x04" + bytes(200),
        "empty": b"",
        "text": b"train_x,train_y\n1,2\n",
    }
    for name, content in bad.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
    np.savez(tmp_path / "shape.npz", **{**arrays, "train_y": arrays["train_y"][:-1]})
    np.savez(tmp_path / "nan.npz", **{**arrays, "train_x": np.nan * arrays["train_x"]})
    np.savez(tmp_path / "huge.npz", **{**arrays, "train_x": np.full((240, 5), 1e300)})
    pickled = np.array([{}] * 240, dtype=object)
    np.savez(tmp_path / "pickle.npz", **{**arrays, "train_x": pickled})
    before = sorted(tmp_path.iterdir())
    for file in before:
        assert_refused(inside("run", "dataset=npz", f"dataset.path={file}"), str(file))
    assert sorted(tmp_path.iterdir()) == before


def test_a_place_that_is_taken_or_cannot_be_written(inside, tmp_path, small):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    assert_refused(
        inside("run", *small, "output.dir=taken"), "exists already", "fedsofim resume taken"
    )
    assert_refused(inside("run", *small, "output.dir=small.npz/run"), "cannot be written")
    assert_refused(inside("run", *small, "output.root=small.npz"), "cannot be written")
    assert sorted(tmp_path.rglob("*")) == before


def test_resume_tells_what_is_not_a_run(inside, tmp_path):
    (tmp_path / "other").mkdir()
    assert_refused(inside("resume", "other"), "other: not a run directory")
    assert_refused(inside("resume", "nowhere"), "nowhere: not a run directory")
    assert_refused(inside("resume"), "name one run directory")
    assert_refused(inside("resume", "a", "b"), "name one run directory")
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


def test_an_unknown_command(inside):
    assert_refused(inside("trane"), "trane: no such command; choose one of run, resume")
    assert_refused(inside("repotr"), "repotr: no such command; ", "; did you mean report?")
    assert_refused(inside("rnu"), "; did you mean run?")
    assert_refused(inside("deploy", "rehearse", "--client=3"), "; did you mean --clients?")
    assert_refused(inside("deploy", "clint"), "; did you mean client?")
    assert_refused(inside("deploy", "client"), "deploy client: give --server, --ca, --id")
    assert_refused(inside("ledger", "--json"), "give command, dir; it is one of show, verify")
    assert_refused(inside("list", "strategis"), "; did you mean strategies?")
    assert_refused(inside("export", "x", "--to", "onx"), "; did you mean onnx?")
    assert_refused(inside("strategy=fedgd", "seed=1"), "'fedsofim run strategy=fedgd seed=1'?")


def test_a_mistake_of_the_last_run_comes_before_the_first(inside, tmp_path, small):
    done = inside("run", "--multirun", *small, "strategy.lr=1,0")
    assert_refused(done, "strategy.lr=0", "must be a finite number > 0")
    assert [p.name for p in tmp_path.iterdir()] == ["small.npz"]


def test_what_the_system_refuses_is_told_with_its_path(inside, tmp_path, small):
    assert inside("run", *small, "rounds=1", "output.dir=mine").returncode == 0
    done = inside("report", "mine", "--out", "small.npz/page.html")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == "fedsofim: small.npz/page.html: Not a directory"


# What works


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_the_commands(inside, arguments):
    done = inside(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("run", "resume", "calibrate"))


def test_help_of_every_command(inside):
    kernel = "no compiled kernel" if head_sums.clipped_residuals is None else "compiled kernel"
    assert inside("--version").stdout == f"fedsofim {__version__} ({kernel})\n"
    for command in COMMANDS:
        for asked in ((command, "--help"), ("help", command)):
            done = inside(*asked)
            assert (done.returncode, done.stderr) == (0, "")
            assert f"usage: fedsofim {command}" in done.stdout
    page = inside("run", "strategy=fedadam", "--help").stdout
    for words in ("adafedprox", "pathmnist", "privacy.epsilon=10", "rounds=70", "strategy.beta1="):
        assert words in page
    assert "decay of m" in page
    assert "Powered by" not in page
    assert inside("run", "strategy=adam", "--help").returncode == 2


@pytest.mark.parametrize("group", sorted({*KINDS, *GROUPS} - {"features", "output"}))
def test_every_key_of_every_choice_has_a_meaning(group):
    for option in (CONF / group).glob("*.yaml"):
        chosen = [f"{group}={option.stem}"]
        page = manual(chosen)
        for key in compose(chosen)[group].keys() - {"name"}:
            meant = rf"^  {group}\.{key}=[^\n]*?(\n {{{COLUMN}}}| {{2,}})\S"  # beside it, or below
            assert re.search(meant, page, re.MULTILINE), (option, key)


@pytest.mark.parametrize(
    ("group", "option", "words"),
    [
        ("strategies", "sofim", "DP-FedSOFIM"),
        ("datasets", "pathmnist", "colon tissue"),
        ("transforms", "kfc", "DP-KFC"),
        ("engines", "local", "one process"),
        ("privacy", "none", "no promise"),
    ],
)
def test_list_tells_each_option_in_a_line(inside, group, option, words):
    lines = dict(line.split(maxsplit=1) for line in inside("list", group).stdout.splitlines())
    folder = CONF / {"strategies": "strategy", "privacy": "privacy"}.get(group, group[:-1])
    assert sorted(lines) == sorted(file.stem for file in folder.glob("*.yaml"))
    assert words in lines[option]
    assert option in inside("list").stdout
    assert_refused(inside("list", "cars"), "cars: unknown; choose one of", "strategies")


def test_cfg_shows_how_values_come_about(inside):
    done = inside("run", "--cfg", "job")
    assert "lr: ${at_epsilon:" in done.stdout
    shown = yaml.safe_load(done.stdout)
    assert "${oc.select:settings.rounds,70}" in shown["rounds"]
    assert shown["seed"] == 0


def test_cfg_shows_the_config_and_does_not_run(inside, tmp_path):
    done = inside("run", "privacy.epsilon=1", "--cfg", "job", "--resolve")
    assert (done.returncode, done.stderr) == (0, "")
    shown = yaml.safe_load(done.stdout)
    assert shown["privacy"]["epsilon"] == 1
    assert shown["strategy"]["lr"] == 3
    assert list(tmp_path.iterdir()) == []


def test_run_shows_and_writes_what_it_did(inside, tmp_path, small):
    done = inside("run", *small, "rounds=20", "output.dir=mine")
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("round", "accuracy %", "epsilon", "noise multiplier", "Written to mine"):
        assert words in done.stdout
    assert "NOT PRIVATE" not in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "small.npz"]
    again = inside("resume", "mine")
    assert (again.returncode, again.stderr) == (0, "")


def test_without_privacy_it_says_so_loudly(inside, small):
    for how in ("privacy=none", "privacy.epsilon=inf", "privacy.noise_multiplier=0"):
        done = inside("run", *small, how)
        assert done.returncode == 0
        assert "NOT PRIVATE" in done.stdout


def test_a_relative_path_stays_valid(inside, tmp_path, small):
    done = inside("run", "dataset=npz", "dataset.path=small.npz", *small[2:], "output.dir=deep/run")
    assert done.returncode == 0
    config = yaml.safe_load((tmp_path / "deep" / "run" / "config.yaml").read_text())
    assert config["dataset"]["path"] == str(tmp_path / "small.npz")


@pytest.mark.parametrize("place", [["output.dir=sweep"], []])
def test_multirun_sweeps(inside, tmp_path, small, place):
    done = inside("run", "--multirun", *small, "seed=0,1", "strategy=sofim,fedgd", *place)
    assert (done.returncode, done.stderr) == (0, "")
    summaries = [json.loads(path.read_text()) for path in tmp_path.rglob("summary.json")]
    found = {(s["strategy"], s["seed"]) for s in summaries}
    assert found == {("sofim", 0), ("sofim", 1), ("fedgd", 0), ("fedgd", 1)}
    if place:
        folders = {p.parent.name for p in (tmp_path / "sweep").glob("*/summary.json")}
        assert folders == {"0", "1", "2", "3"}
