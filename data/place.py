"""Where the project and its embedded data are, also for a copy of the code."""

import importlib.metadata
import json
import urllib.parse
from pathlib import Path


def editable_root() -> Path | None:
    """The project's own directory, if the package is installed from there in place."""
    try:
        told = importlib.metadata.distribution("fedsofim").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    origin = json.loads(told or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(urllib.parse.unquote(urllib.parse.urlparse(origin["url"]).path))


def embedded() -> Path:
    """The directory of the embedded sets: beside this file, or with the installed package.

    Flower's app bundle carries source files only, so under `flwr run` this module may be a copy
    that has no data beside it.
    """
    beside = Path(__file__).resolve().parent / "embedded"
    if beside.is_dir():
        return beside
    try:
        packages = Path(str(importlib.metadata.distribution("fedsofim").locate_file("")))
    except importlib.metadata.PackageNotFoundError:
        return beside
    return (editable_root() or packages) / "data" / "embedded"
