"""The package as people get it: a wheel in an environment of its own, and Flower's bundle."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("fedsofim", "strategies", "clients", "data", "conf")


def clean() -> dict[str, str]:
    """The environment's variables, without those that show the sources."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in hidden}


class Installed(NamedTuple):
    """An environment with the wheel, and an empty folder to work in."""

    bin: Path
    site: Path
    work: Path

    def run(self, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run one of the environment's programs, without the source in sight."""
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.work,
            env={**clean(), "FEDSOFIM_HOME": str(self.work / "home"), **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )


def _copy(target: Path, endings: tuple[str, ...] | None = None) -> Path:
    """The sources, or those of their files that Flower's bundle takes."""
    for room in ROOMS:
        for file in (ROOT / room).rglob("*"):
            wanted = endings is None or file.suffix in endings
            if file.is_file() and wanted and "__pycache__" not in file.parts:
                place = target / file.relative_to(ROOT)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, target / name)
    return target


def _pip(*arguments: str, **variables: str) -> str:
    """Run pip, and return all that it printed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    env = {**clean(), **variables}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources."""
    source = _copy(tmp_path_factory.mktemp("source"))
    out = tmp_path_factory.mktemp("wheel")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    _pip("wheel", str(source), *offline, "--wheel-dir", str(out))
    (made,) = out.glob("fedsofim-*.whl")
    return made


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a new environment, which takes all other packages from the outer one."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    _pip("--python", str(python), "install", "--no-deps", "--no-index", "--quiet", str(wheel))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = place / "lib" / version / "site-packages"
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    work = tmp_path_factory.mktemp("elsewhere")
    (work / "data").mkdir()  # a user's own, with names that are rooms of this project
    (work / "data" / "__init__.py").write_text("raise ImportError('not ours')\n")
    (work / "clients.py").write_text("raise ImportError('not ours')\n")
    return Installed(place / "bin", site, work)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What 'flwr run' sends to where the app runs: sources and configs, but no data."""
    endings = (".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")
    return _copy(tmp_path_factory.mktemp("bundle"), endings)


@pytest.fixture
def in_place(tmp_path: Path) -> Callable[..., str]:
    """Install the sources in place in a new environment, and return what pip printed."""

    def install(**variables: str) -> str:
        place = tmp_path / "environment"
        venv.create(place, symlinks=True)
        (site,) = place.glob("lib/*/site-packages")
        (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
        offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
        python, source = place / "bin" / "python", _copy(tmp_path / "source")
        return _pip(
            *("--python", str(python), "install", *offline, "--editable", str(source)), **variables
        )

    return install
