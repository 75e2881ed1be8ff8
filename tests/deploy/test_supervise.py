"""A client's supervisor: what it shows, and that nothing outlives it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsofim.deploy import programs
from fedsofim.deploy import supervise as supervision
from fedsofim.deploy.programs import run_to_end
from fedsofim.deploy.reach import Address
from fedsofim.deploy.supervise import Listener, Voice, supervise

REFUSED = """\
\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode
INFO:     Uvicorn running on http://127.0.0.1:9094 (Press CTRL+C to quit)
\x1b[91mERROR \x1b[0m:     Exit Code: 305
Failed to initialize the connection to the SuperLink.
[code: 2004] Failed to activate SuperNode.
The SuperNode could not establish a connection to the SuperLink.

For more information, visit: <https://flower.ai/docs/>
"""
# As behind a proxy whose server is down, or at another program's port.
ELSEWHERE = """\
INFO:     Uvicorn running on http://127.0.0.1:9094 (Press CTRL+C to quit)
\x1b[91mERROR \x1b[0m:     Exit Code: 305
Failed to initialize the connection to the SuperLink.
Client error '404 Not Found' for url 'https://127.0.0.1:9092/v1/fleet/activate-node'
For more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/404
The SuperNode could not establish a connection to the SuperLink.

For more information, visit: <https://flower.ai/docs/>
"""
WORKING = """\
\x1b[92mINFO \x1b[0m:      SuperNode ID: 123
\x1b[92mINFO \x1b[0m:      [RUN 8, ROUND 2]
\x1b[92mINFO \x1b[0m:      Receiving: train message (ID: 0d95)
\x1b[92mINFO \x1b[0m:      Sent successfully
\x1b[93mWARNING \x1b[0m:   Connection attempt failed, retrying in 0.72 seconds
\x1b[93mWARNING \x1b[0m:   Connection attempt failed, retrying in 1.31 seconds
Not told to the server: epsilon is spent
"""

# A program that starts another and writes down who it is.
FAMILY = """
import os, subprocess, sys, time
words = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(300)"
# As Flower's SuperExec: in a session of its own, and in no hurry to end.
child = subprocess.Popen([sys.executable, "-c", words], start_new_session=sys.argv[2] == "apart")
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(300)
"""
PARENT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's "&" would take away
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and this one "nohup"
from fedsofim.deploy import programs
programs.PATIENCE = 3.0
with programs.ending_cleanly():
    programs.run_to_end([sys.executable, *sys.argv[1:]], programs.environment())
"""


@pytest.fixture
def shown() -> list[str]:
    return []


def _supervise(
    run: Callable[..., int], shown: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Supervise a SuperNode that runs as this says, until it raises `KeyboardInterrupt`."""
    monkeypatch.setattr(supervision, "run_to_end", run)
    monkeypatch.setattr(supervision, "why_not", lambda *_: None)
    monkeypatch.setattr(supervision, "PAUSE", 0.0)
    monkeypatch.setattr(sys.stdout, "write", shown.append)
    with pytest.raises(KeyboardInterrupt):
        supervise(["supernode"], Address("host", 1), folder / "ca.crt", folder / "client.pub")


def hear(text: str, shown: list[str], log: Path) -> Listener:
    listener = Listener(Voice(shown.append), log)
    for line in text.splitlines(keepends=True):
        listener.hear(line)
    return listener


def test_a_client_that_is_not_let_in_is_not_noisy(shown: list[str], tmp_path: Path) -> None:
    listener = hear(REFUSED, shown, tmp_path / "log")
    assert listener.refused
    assert shown == []
    assert "[code: 2004]" in (tmp_path / "log").read_text()


def test_what_an_operator_must_know_is_shown(shown: list[str], tmp_path: Path) -> None:
    assert not hear(WORKING, shown, tmp_path / "log").refused
    assert "".join(shown) == (
        "Connected; waiting for runs\nrun 8, round 2: answered\n"
        "The server does not answer; trying again\n.\nNot told to the server: epsilon is spent\n"
    )


@pytest.mark.parametrize(
    ("printed", "code", "told"),
    [
        (ELSEWHERE, 1, "does not answer as 'fedsofim deploy server' does (Client error '404 Not"),
        (WORKING.partition("\n")[0], 0, "The server has ended the connection; trying again\n."),
    ],
)
def test_a_client_goes_on_waiting_and_says_so_once(
    shown: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: str,
    code: int,
    told: str,
) -> None:
    """Also if its SuperNode ends with code 0, as when its key was unregistered meanwhile."""

    def end(command: object, variables: object, hear: Callable[[str], None]) -> int:
        ended.append(code)
        if len(ended) == 3:
            raise KeyboardInterrupt
        for line in printed.splitlines() if len(ended) == 1 or code else ():
            hear(line)
        return code

    ended: list[int] = []
    _supervise(end, shown, tmp_path, monkeypatch)
    monkeypatch.undo()
    said = "".join(shown)
    assert told in said
    assert said.endswith(".")
    assert len(said.splitlines()) == 2 + (code == 0)


def test_waiting_is_said_once_and_then_dotted(
    shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([True, True, True, False])

    def refuse(command: object, variables: object, hear: Callable[[str], None]) -> int:
        if not next(times):
            raise KeyboardInterrupt
        for line in REFUSED.splitlines():
            hear(line)
        return 1

    _supervise(refuse, shown, tmp_path, monkeypatch)
    key, first = tmp_path / "client.pub", "".join(shown)
    shown.clear()
    (tmp_path / "supernode.log").write_text(WORKING)  # it has been let in before, and was killed
    times = iter([True, True, False])
    with pytest.raises(KeyboardInterrupt):
        supervise(["supernode"], Address("host", 1), tmp_path / "ca.crt", key)
    monkeypatch.undo()
    assert first == f"Waiting to be registered: send {key} to the server\n.."
    again = "".join(shown)
    assert again.startswith("Waiting to be let in again: for up to a minute ")
    assert again.endswith(f"{key} is no longer registered there\n.")


def test_a_log_does_not_grow_without_end(
    shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "LOG", 5_000)
    log = tmp_path / "supernode.log"
    for _ in range(50):
        hear(REFUSED, shown, log)
    assert sorted(file.name for file in tmp_path.iterdir()) == [log.name, f"{log.name}.1"]
    assert all(file.stat().st_size < 6_000 for file in tmp_path.iterdir())
    (tmp_path / f"{log.name}.1").write_text(WORKING)
    assert "let in again" in supervision._why_refused(tmp_path / "client.pub", log)


def test_a_full_disk_does_not_stop_the_listening(shown: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()  # can't be written, either
    hear(WORKING, shown, log)
    assert "can't be written" in shown[0]
    assert "run 8, round 2: answered" in "".join(shown)


def test_the_lines_of_a_program_are_heard_though_its_child_lives_on(tmp_path: Path) -> None:
    told: list[str] = []
    code = "import subprocess, sys; subprocess.Popen(['sleep', '300']); print('here'); sys.exit(3)"
    began = time.monotonic()
    assert run_to_end([sys.executable, "-c", code], dict(os.environ), told.append) == 3
    assert told == ["here\n"]
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_whole_tree(tmp_path: Path, number: signal.Signals) -> None:
    parent, family = _tree(tmp_path)
    parent.send_signal(number)
    parent.wait(30)
    _wait(lambda: not any(_alive(pid) for pid in family))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    parent, family = _tree(tmp_path, "apart")  # the child ignores SIGTERM, which takes a while
    for _ in range(3):
        parent.send_signal(number)
        time.sleep(0.3)
    parent.wait(30)
    _wait(lambda: not any(_alive(pid) for pid in family))


def test_a_signal_while_a_program_is_being_started_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, begin = [], programs.start

    def interrupted(*given: Any, **options: Any) -> "subprocess.Popen[Any]":
        started.append(begin(*given, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(programs, "start", interrupted)
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    with pytest.raises(SystemExit), programs.ending_cleanly():
        run_to_end(command, dict(os.environ))
    assert started[0].poll() is not None


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells who started whom")
def test_a_signal_ends_what_has_left_the_group(tmp_path: Path) -> None:
    parent, family = _tree(tmp_path, "apart")
    parent.terminate()
    parent.wait(30)
    _wait(lambda: not any(_alive(pid) for pid in family))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells children of their parent's death")
def test_a_program_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    parent, (leader, child) = _tree(tmp_path)
    parent.kill()
    parent.wait(30)
    try:
        _wait(lambda: not _alive(leader))
    finally:
        os.kill(child, signal.SIGKILL)  # Flower's programs watch their parents; this one does not


def _tree(folder: Path, child: str = "near") -> tuple["subprocess.Popen[bytes]", tuple[int, int]]:
    """A supervisor, the program that it runs, and that program's child."""
    program, pids = folder / "family.py", folder / "pids"
    program.write_text(FAMILY)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(program), str(pids), child])
    _wait(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    leader, child = map(int, pids.read_text().split())
    assert _alive(leader)
    assert _alive(child)
    return parent, (leader, child)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 30 s"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
