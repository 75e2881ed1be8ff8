"""Flower's programs, and what they are started with."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from fedsofim.core.errors import ConfigError

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


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
    """The environment for Flower's programs: no telemetry, and no installing of packages.

    They start each other by name, so they must be found even if no environment is activated.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **ENVIRONMENT, "PATH": path, **more}


def program(name: str) -> str:
    """One of Flower's programs, from the environment that this one runs in."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name}: not found; is Flower installed?")
    return found


def attend(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a program to its end, and end it when this one is interrupted or told to end."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with subprocess.Popen(command, env=variables) as process:
        try:
            return process.wait()
        except (KeyboardInterrupt, SystemExit):
            process.terminate()
            process.wait()
            raise


def become(command: Sequence[str]) -> NoReturn:
    """End this program and be that one."""
    os.execve(command[0], list(command), environment())
