"""Which questions of a protocol an owner has answered, in a file that only grows.

A session's state is kept with the owner's other files. Were these put back to what they were, by a
backup or by a snapshot, the owner would have forgotten an answer that has left: it would draw noise
anew under the same masks, or sign another list of survivors. So each answer is noted before it
leaves, in the user's own folder beside the head of the ledger, and a state that does not know what
is noted here is refused. The notes have a name, which is part of a state's: a folder that is moved
to another machine leaves the notes behind, and with them its sessions.
"""

import os
import secrets
from pathlib import Path

from fedsofim.core.files import naming, sync_folder


class Answered:
    """The notes about the sessions of some records.

    Args:
        path: the file; it is made with its first note.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """What these notes are called: their first word, which is drawn."""
        if not self._first():  # there are none yet, or a full disk left nothing of them
            self.note(secrets.token_hex(8), "NOTES")
        return self._first()

    def _first(self) -> str:
        if not self.path.exists():
            return ""
        with open(self.path, "rb") as file:
            return (file.read(80).split() or [b""])[0].decode()

    def knows(self, session: str, stage: str) -> bool:
        """Whether an answer in this stage has left, or may have."""
        return self.path.exists() and _line(session, stage) in self.path.read_bytes()

    def note(self, session: str, stage: str) -> None:
        """Write down that an answer is about to leave; it is on disk when this returns."""
        if self.knows(session, stage):
            return
        new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with naming(self.path), open(self.path, "ab") as file:
            file.write(_line(session, stage))
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.path.parent)


def _line(session: str, stage: str) -> bytes:
    """A whole line, with the end of the one before: what a power cut left of that is no line."""
    return f"\n{session} {stage}\n".encode()
