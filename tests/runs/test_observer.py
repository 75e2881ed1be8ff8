"""What somebody hears of a run, in plain lines and on a terminal."""

import ast
import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from fedsofim.cli import terminal
from fedsofim.cli.terminal import Terminal
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.runs import session
from fedsofim.runs.experiment import prepare
from fedsofim.runs.observer import Observer, Text


@pytest.fixture
def values(small, tmp_path):
    return lambda *more: compose([*small, f"output.dir={tmp_path / 'run'}", *more])


def heard(observer_of, values):
    out = io.StringIO()
    session.run(values, observer=observer_of(out))
    return out.getvalue()


def on_terminal(out):
    return Terminal(Console(file=out, force_terminal=True, width=200, highlight=False))


def test_by_default_nobody_is_told(values, capfd):
    session.run(values())
    assert tuple(capfd.readouterr()) == ("", "")


def test_plain_lines_tell_all(values, tmp_path):
    lines = heard(lambda out: Text(out=out), values()).splitlines()
    assert lines[0] == "sofim on npz: 4 clients (dirichlet), 6 rounds, 18 parameters"
    assert lines[1].startswith("epsilon 10 at delta 1e-05 for one record (replace-one); noise")
    assert lines[2] == "round 1 of 6 …"
    assert [line[:12] for line in lines[3:9]] == [f"round {t} of 6" for t in range(1, 7)]
    assert lines[-2].startswith("spent: epsilon 10 at delta 1e-05")
    assert lines[-1] == f"Written to {tmp_path / 'run'}"


def test_in_a_notebook_one_line_tells_the_progress(values):
    text = heard(lambda out: Text(out=out, overwrite=True), values())
    progress = [line for line in text.split("\n") if "\r" in line]
    assert len(progress) == 1
    assert progress[0].count("\r") == 7
    shown = progress[0].split("\r")
    assert shown[1] == "round 1 of 6 …"
    assert shown[-1].startswith("round 6 of 6: accuracy ")
    assert len(shown[-1]) >= len(shown[-1].rstrip())


@pytest.mark.parametrize("observer_of", [lambda out: Text(out=out), on_terminal])
@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["privacy=none"], ["NOT PRIVATE", "no noise is added: anything may leak."]),
        (["strategy=alone"], ["nothing is sent: epsilon 0"]),
        (["participation=0.5"], ["2 clients a round; a record is charged for at most"]),
        (["strategy=pfedsop"], ["over 4 clients, each with its own model"]),
        (["strategy=fedgd", "strategy.lr=1e38"], ["DIVERGED", "lower strategy.lr"]),
    ],
)
def test_what_matters_is_told_everywhere(values, observer_of, more, told):
    text = heard(observer_of, values(*more))
    for words in told:
        assert words in text


def test_a_terminal_shows_the_first_round_before_it_is_done(small):
    out = io.StringIO()
    experiment = prepare(parse(compose(small)))
    observer = on_terminal(out)
    observer.announce(experiment, 10.0, 0)
    shown = out.getvalue()
    observer.close()
    assert "round 1 of 6 …" in shown
    assert "0/6" in shown
    out.truncate(0)
    observer.announce(experiment, 10.0, 4)
    assert "round 5 of 6 …" in out.getvalue()
    assert "4/6" in out.getvalue()
    observer.close()


def test_a_terminal_ends_with_a_table(values):
    text = heard(on_terminal, values())
    assert "accuracy %" in text
    assert "spent: epsilon 10" in text


def test_an_observer_is_closed_whatever_happens(values, monkeypatch):
    closed = []

    class Closing(Observer):
        def round(self, row):
            raise OSError("no screen")

        def close(self):
            closed.append(True)

    with pytest.raises(OSError, match="no screen"):
        session.run(values(), observer=Closing())
    assert closed


def test_the_promise_of_an_extended_run_is_told_before_it_trains(values, tmp_path):
    promised = []

    class Hearing(Observer):
        def announce(self, experiment, epsilon, done):
            promised.append((epsilon, done))

    session.run(values(), observer=Hearing())
    changes = {"rounds": 9, "privacy.epsilon": 12}
    session.resume(tmp_path / "run", changes, observer=Hearing())
    assert [(round(epsilon, 6), done) for epsilon, done in promised] == [(10, 0), (12, 6)]
    assert not math.isinf(promised[0][0])


def test_importing_makes_no_console():
    tree = ast.parse(Path(terminal.__file__).read_text())
    calls = [
        node.func.id
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.Expr)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert calls == []
    assert not any(isinstance(value, Console) for value in vars(terminal).values())
