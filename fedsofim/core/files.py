"""Files that are never seen half-written, locks that end with their process, and where they are."""

import hashlib
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsofim.core.errors import ConfigError

RUNNING = ".running"  # says who works in a folder


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an error of the system, which leaves it out when a write fails."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextmanager
def whole(path: Path, *, sync_name: bool = True, parents: bool = True) -> Iterator[Path]:
    """Give a temporary name to write to, and rename it to `path` at the end, if nothing failed.

    Either the old or the new file is there, even after a power cut.

    Args:
        path: the file.
        sync_name: whether it is the new one for certain when this returns; it takes as long again.
        parents: whether to make the folders that it is in.
    """
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            yield draft
            with draft.open("rb+") as written:
                os.fsync(written.fileno())
            os.replace(draft, path)
            if sync_name:
                sync_folder(path.parent)
    except OSError as error:
        if error.filename != str(draft):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        draft.unlink(missing_ok=True)


def write_whole(
    path: Path, content: bytes, *, sync_name: bool = True, parents: bool = True
) -> None:
    """Replace a file as a whole."""
    with whole(path, sync_name=sync_name, parents=parents) as draft:
        draft.write_bytes(content)


def sha256(file: Path) -> str:
    """The hash of a file's content, in hex."""
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def remove_drafts(folder: Path, name: str) -> None:
    """Remove what processes that were killed while writing `name`, a pattern, left behind.

    Only where a lock keeps all others from writing it.
    """
    for draft in folder.glob(f".{name}.*"):
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Let a new or replaced file's name in this folder survive a power cut, too."""
    if sys.platform == "win32":  # where a folder cannot be opened, and need not be
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, seconds: float = -1) -> Iterator[None]:
    """Hold a lock against all other processes and threads; it ends with the process.

    Args:
        path: a file that exists for this alone.
        seconds: how long to wait for it before a `TimeoutError`; for ever by default.
    """
    from filelock import FileLock  # here: it takes a while, and most commands lock nothing

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(path, timeout=seconds):
        yield


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep all others from working in a folder; they are told who does. It ends with the process.

    Where a system has no such locks, as Windows, nobody is kept out.
    """
    if sys.platform == "win32":
        yield
        return
    file = folder / RUNNING
    with naming(file):
        while (handle := _held(file)) is None:
            pass
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(handle)


def _held(file: Path) -> int | None:
    """A handle of this file that nobody else has locked; `None` if it was removed meanwhile."""
    import fcntl

    handle, kept = os.open(file, os.O_RDWR | os.O_CREAT, 0o644), False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kept = file.exists() and os.path.samestat(os.fstat(handle), file.stat())
        return handle if kept else None
    except BlockingIOError:
        who = os.read(handle, 200).decode(errors="replace") or "another process"
        told = f"{file.parent}: {who} is at work there; wait for it, or end it"
        raise ConfigError(told) from None
    finally:
        if not kept:
            os.close(handle)


def user_state() -> Path:
    """The user's own folder for what must outlive any directory of a client's."""
    if chosen := os.environ.get("FEDSOFIM_STATE"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "fedsofim"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "fedsofim"
