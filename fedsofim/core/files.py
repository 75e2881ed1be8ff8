"""Files that are never seen half-written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system name the file, as it does not when a write fails."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name to write to; what is there then becomes `path`, if nothing fails.

    Either the old or the new file is there, even after a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            yield draft
            with draft.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(draft, path)
            sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file as a whole."""
    with whole(path) as draft:
        draft.write_bytes(content)


def sync_folder(folder: Path) -> None:
    """Let a new or replaced file's name in this folder survive a power cut, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
