"""Finds every file that comes with the package: configs, embedded features, weights, tables.

In a checkout these files stand beside the package, in a wheel inside it. Flower's app bundle
carries source files only, so under `flwr run` what it lacks is taken from the installed package.
"""

from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def editable_root() -> Path | None:
    """The project's own directory, if the package is installed from there in place.

    What setuptools leaves in a checkout tells nothing, and may be found before what pip wrote,
    which has a record of its files.
    """
    import importlib.metadata
    import json
    import urllib.parse

    known = importlib.metadata.distributions(name="fedsofim")
    installed = next((one for one in known if one.read_text("RECORD") is not None), None)
    origin = json.loads((installed and installed.read_text("direct_url.json")) or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(urllib.parse.unquote(urllib.parse.urlparse(origin["url"]).path))


def shipped(name: str) -> Path:
    """The path of a shipped file or folder, such as `data/paper`.

    If there is none, it is the path that a checkout would have; opening it then fails and names it.
    """
    return next((root / name for root in _roots() if (root / name).exists()), PACKAGE.parent / name)


def described(group: str, name: str) -> str:
    """What the config of an option says of it first, in a comment; empty if there is none."""
    file = shipped("conf") / group / f"{name}.yaml"
    for line in file.read_text().splitlines() if file.is_file() else ():
        _, mark, text = line.partition("#")
        if mark and not text.strip().startswith("@package"):
            return text.strip()
    return ""


def _roots() -> Iterator[Path]:
    # In a wheel the rooms are inside the package; what then lies beside it is not ours.
    inside = (PACKAGE / "strategies").is_dir()
    yield PACKAGE if inside else PACKAGE.parent
    if inside:
        return
    if root := editable_root():
        yield root
    import importlib.metadata

    try:
        yield Path(str(importlib.metadata.distribution("fedsofim").locate_file("fedsofim")))
    except importlib.metadata.PackageNotFoundError:
        return
