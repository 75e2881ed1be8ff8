"""Files that are never seen half-written."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file as a whole: either the old or the new one is there, even after a power cut."""
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Let a new or replaced file's name in this folder survive a power cut, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
