"""Flower's programs, and what they are started with."""

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fedsofim.core.errors import ConfigError
from fedsofim.core.signals import polite

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}

# Flower starts a client's process for every message, and looks once a second whether to.
LOOKS = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}

PATIENCE = 15.0  # seconds that a program may take to end when it is told to


def server_command(folder: Path, host: str, port: int) -> list[str]:
    """The SuperLink's command line."""
    return [
        *(program("flower-superlink"), "--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", str(folder / "ca.crt")),
        *(
            "--ssl-certfile",
            str(folder / "server.pem"),
            "--ssl-keyfile",
            str(folder / "server.key"),
        ),
        *("--enable-supernode-auth", "--database", str(folder / "state.db")),
        *("--isolation", "subprocess", "--disable-runtime-dependency-installation"),
    ]


def client_command(
    folder: Path,
    *,
    server: str,
    certificate: Path,
    node: str,
    port: int,
    trusted: Path | None = None,
) -> list[str]:
    """The SuperNode's command line."""
    signed = ["--trusted-entities", str(trusted)] if trusted else []
    return [
        *(program("flower-supernode"), "--superlink", server),
        *("--root-certificates", str(certificate.resolve())),
        *("--auth-supernode-private-key", str(folder / "client")),
        *("--node-config", node, "--host", "127.0.0.1", "--port", str(port)),
        *signed,
    ]


def environment(**more: str) -> dict[str, str]:
    """The environment for Flower's programs: no telemetry, no installing, and little waiting.

    They start each other by name, so they must be found even if no environment is activated. And
    they start a process for every message: without bytecode each of them would compile all anew.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    given = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**LOOKS, **given, **ENVIRONMENT, "PATH": path, **more}


def own_home(folder: Path) -> dict[str, str]:
    """A home for what Flower unpacks, in a client's or server's own folder, and empty at first.

    Flower takes a bundle's folder for complete if it is there: one that a power cut or a full disk
    left half-written, or that another client is still writing, would fail in every run.
    """
    home = folder / "flower"
    shutil.rmtree(home / "apps", ignore_errors=True)
    return {"FLWR_HOME": str(home)}


def program(name: str) -> str:
    """One of Flower's programs, from the environment that this one runs in."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name}: not found; is Flower installed?")
    return found


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Inside, SIGTERM (from systemd, a container, `kill`) ends this process as Ctrl-C does.

    So does the end of its terminal, unless `nohup` said otherwise.
    """
    before = {s: signal.signal(s, lambda number, frame: sys.exit(128 + number)) for s in polite()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """Start a program that leads a process group of its own, for `end`.

    Ctrl-C reaches this process alone, which then ends the group. Should this process be killed,
    Linux tells the program to end.
    """
    last_words = _end_with_parent if sys.platform == "linux" else None
    return subprocess.Popen(command, start_new_session=True, preexec_fn=last_words, **options)


def run_to_end(
    command: Sequence[str],
    variables: Mapping[str, str],
    hear: Callable[[str], None] | None = None,
) -> int:
    """Run a program to its end, or to this process's; its exit code.

    Args:
        command: its command line.
        variables: its environment.
        hear: is given each line of its output; without, it prints for itself.
    """
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if hear else {}
    process = listener = None
    try:
        with _undisturbed(later=True):
            process = start(command, env=variables, text=True, errors="replace", **output)
            # What the program started may hold its output open, and waits for it to be gone.
            listener = threading.Thread(target=_each, args=(hear, process.stdout), daemon=True)
            listener.start()
        return process.wait()
    finally:
        if process and listener:
            end(process)
            listener.join(PATIENCE)


def _each(hear: Callable[[str], None] | None, lines: IO[str] | None) -> None:
    for line in lines or ():
        if hear is not None:
            hear(line)


@contextmanager
def _undisturbed(*, later: bool) -> Iterator[None]:
    """Inside, Ctrl-C and the like are not heard: what is being started, or ended, would live on.

    Args:
        later: whether they are heard at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    signals = (signal.SIGINT, *polite())
    before = {s: signal.signal(s, lambda number, frame: heard.append(number)) for s in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard and later:
            signal.raise_signal(heard[0])


@_undisturbed(later=False)
def end(*processes: "subprocess.Popen[Any]") -> None:
    """End programs that lead process groups, and all that they started; politely at first.

    Flower's SuperLink starts its SuperExec in a group of its own, and waits a second for it.
    """
    families = [each for process in processes for each in _descendants(process.pid)]
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for each in families:
        select.select([each], [], [], max(0.0, deadline - time.monotonic()))
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(each, signal.SIGKILL)
        os.close(each)


def _descendants(ancestor: int) -> list[int]:
    """Handles of all that a process has started, directly or not; on Linux alone."""
    if sys.platform != "linux":
        return []
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
            parents[int(place.name)] = int(words[1])
    found, new = set[int](), {ancestor}
    while new := {pid for pid, parent in parents.items() if parent in new}:
        found |= new
    handles = []
    for pid in found:
        with suppress(OSError):
            handles.append(os.pidfd_open(pid))
    return handles


def _end_with_parent() -> None:
    """Ask Linux for a SIGTERM when the parent dies; runs in the new process."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
