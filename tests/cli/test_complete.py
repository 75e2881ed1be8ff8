"""What the shell is offered where the cursor is."""

import shutil
import subprocess
import sys

import pytest

from fedsofim.cli.complete import candidates
from fedsofim.cli.main import COMMANDS
from fedsofim.config.compose import CONF, compose
from fedsofim.config.overrides import names
from fedsofim.strategies import STRATEGIES


def offered(line):
    """The candidates for the last word of a command line, which may be empty."""
    words = line.split(" ")
    return [c for c, _ in candidates(words) if c.startswith(words[-1])]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", list(COMMANDS)),
        ("re", ["resume", "reproduce", "report"]),
        ("run part", ["partition=", "partition.clients=", "partition.alpha="]),
        ("run --", ["--help", "--multirun", "--cfg", "--resolve"]),
        ("run --cfg ", ["job"]),
        ("run rounds=3 see", ["seed="]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("list str", ["strategies"]),
        ("sweep --j", ["--jobs"]),
        ("deploy re", ["register", "rehearse"]),
        ("deploy client --ad", ["--adjacency"]),
        ("deploy client --adjacency ", ["replace-one", "add-remove"]),
        ("reproduce table1", [f"table{i}" for i in range(10, 17)]),
        ("nonsense ", []),
        ("run nonsense=", []),
    ],
)
def test_candidates(line, expected):
    found = offered(line)
    assert [word for word in found if word in expected] == expected
    assert expected or not found


def test_values_of_groups_are_those_there_are():
    assert offered("run strategy=") == [f"strategy={name}" for name in sorted(STRATEGIES)]
    assert offered("run dataset=path") == ["dataset=pathmnist"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_keys_are_those_of_the_config_that_is_chosen(strategy):
    """The files, read without Hydra, give the names that Hydra composes."""
    known = {f"{key}=" for key in names(compose([f"strategy={strategy}"]))}
    groups = {f"{folder.name}=" for folder in CONF.iterdir() if any(folder.glob("*.yaml"))}
    keys = set(offered(f"run strategy={strategy} ")) - groups
    sections = {f"{key}=" for key in compose([])} | {f"{group[:-1]}.name=" for group in groups}
    assert keys - sections == known - sections - groups


def test_it_loads_nothing_that_takes_long():
    code = (
        "import sys; sys.argv = ['fedsofim', 'complete', '--', 'run', 'strategy=sofim', 'str']; "
        "from fedsofim.cli.main import main; main(); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "strategy.rho=" in done.stdout
    loaded = done.stdout.splitlines()[-1].split()
    assert {"numpy", "hydra", "omegaconf", "rich", "flwr", "torch"} & set(loaded) == set()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedsofim cal", "calibrate"),
        ("fedsofim run strategy=sof", "sofim"),  # bash replaces what is behind the '=' only
        ("fedsofim run strategy=fedadam strategy.beta", "strategy.beta1= strategy.beta2="),
    ],
)
def test_the_script_for_bash_works(environment, line, expected):
    script = f"""
        fedsofim() {{ {sys.executable} -m fedsofim "$@"; }}
        compopt() {{ :; }}
        eval "$(fedsofim completion bash)"
        COMP_LINE={line!r} COMP_POINT={len(line)}
        _fedsofim
        echo "${{COMPREPLY[*]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout.strip(), done.stderr) == (expected, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(inside, shell):
    script = inside("completion", shell).stdout
    assert "complete --" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
