"""The settings that `fedsofim tune` chose: the user's own first, then those that are shipped.

They are kept by data set, backbone and strategy. Data of the user's own is known by its content, so
settings that were chosen on a file are found again when it is moved, and not when it is changed.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import sha256
from fedsofim.core.shipped import shipped


def home() -> Path:
    """The user's own folder: `$FEDSOFIM_HOME`, or `fedsofim` where the system keeps settings."""
    if named := os.environ.get("FEDSOFIM_HOME"):
        return Path(named)
    if sys.platform == "win32":
        base = os.environ.get("APPDATA")
        return (Path(base) if base else Path.home() / "AppData" / "Roaming") / "fedsofim"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "fedsofim"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "fedsofim"


def own_file(config: Mapping[str, Any], strategy: str) -> Path:
    """Where the settings that are chosen on this data go, and are found first."""
    return home() / "tuned" / f"{data_name(config['dataset'])}{_by(config)}_{strategy}.yaml"


def settings_for(config: Mapping[str, Any], strategy: str) -> dict[str, Any]:
    """The settings that were chosen for a strategy on this data.

    Args:
        config: the sections `dataset` and `backbone` of a composed config.
        strategy: its name.
    """
    dataset = config["dataset"]
    known = f"{dataset['name']}{_by(config)}_{strategy}.yaml"
    places = (own_file(config, strategy), home() / "tuned" / known)
    file = next(
        (f for f in (*places, shipped("conf") / "chosen" / "tuned" / known) if f.is_file()), None
    )
    if file is None:
        raise ConfigError(
            f"settings=tuned: there are none for dataset={dataset['name']} "
            f"backbone={config['backbone']['name']} strategy={strategy}; "
            "choose some with 'fedsofim tune', or leave settings=published"
        )
    try:
        found = yaml.safe_load(file.read_text())
    except yaml.YAMLError:
        found = None
    require(isinstance(found, dict), f"{file}: holds no settings; choose them again, or remove it")
    return dict(found)


def _by(config: Mapping[str, Any]) -> str:
    """What tells the features of another backbone from those of the default one."""
    backbone = config["backbone"]["name"]
    return "" if backbone == "resnet20" else f"-{backbone}"


def data_name(dataset: Mapping[str, Any]) -> str:
    """A data set's name; with a hash of its content where it is the user's own."""
    name, path, root = (dataset.get(key) for key in ("name", "path", "root"))
    if path:
        return f"{name}-{_content(Path(path))}"
    return f"{name}-{_listing(Path(root))}" if name == "folder" and root else str(name)


def _content(file: Path) -> str:
    require(file.is_file(), f"dataset.path={file}: there is no such file")
    about = file.stat()
    return _digest(file, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=8)
def _digest(file: Path, size: int, changed: int) -> str:
    return sha256(file)[:12]


def _listing(folder: Path) -> str:
    """Of a folder of images, the names and sizes: reading all of them would take too long."""
    require(folder.is_dir(), f"dataset.root={folder}: there is no such folder")
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    told = "\n".join(f"{file.relative_to(folder)} {file.stat().st_size}" for file in files)
    return hashlib.sha256(told.encode()).hexdigest()[:12]
