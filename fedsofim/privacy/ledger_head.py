"""The head of a ledger: what its lines come to, kept apart from them in the user's own folder.

There are two copies, because waiting for a disk takes longer than all the rest of a charge. The
`latest` is written with every line and left to the operating system: it survives a process that is
killed. The `safe` one is on disk for certain, and at most `EVERY` lines behind: it is read where a
power cut damaged the other.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedsofim.core.errors import require
from fedsofim.core.files import user_state, write_whole
from fedsofim.privacy.book import Balance, balance_of

EVERY = 64


class Known(NamedTuple):
    """What a head knows: the balance, and where the ledger was."""

    balance: Balance
    path: Path


class LedgerHead:
    """The head of the account of the records with this digest."""

    def __init__(self, data: str) -> None:
        self.safe = heads() / f"{data}.json"
        self.latest = self.safe.with_suffix(".latest")

    def read(self) -> Known | None:
        """What is known; `None` if there is no account.

        Raises:
            ValueError: if it can't be read.
        """
        if not (self.safe.is_file() or self.latest.is_file()):
            return None
        try:
            copies = [_whole(self.safe)] if self.safe.is_file() else []
            with suppress(Exception):  # after a power cut; the other is as good, with more to read
                copies.append(_whole(self.latest))
            require(bool(copies), "one copy is gone, the other was changed or cut short")
            _, said = max(copies)
            values = json.loads(said)
            return Known(balance_of(values["balance"]), Path(values["path"]))
        except Exception as error:
            raise ValueError(f"its head, {self.safe}, is damaged ({error})") from None

    def write(self, balance: Balance, path: Path) -> None:
        """Keep a balance; only under the ledger's lock."""
        said = json.dumps({"path": str(path.resolve()), "balance": balance.values()})
        numbered = f"{balance.lines}\n{said}".encode()
        content = hashlib.sha256(numbered).hexdigest().encode() + b"\n" + numbered
        if balance.lines % EVERY == 0 or not self.safe.is_file():
            write_whole(self.safe, content)
        # In place: a new file in place of an old one would wait for the disk.
        with open(self.latest, "r+b" if self.latest.exists() else "wb") as file:
            file.write(content)
            file.truncate()


def heads() -> Path:
    """Where the heads of all ledgers of this user are."""
    return user_state() / "ledgers"


def find(path: Path) -> str:
    """The digest of the records whose ledger was at this path last; empty if none was."""
    for safe in sorted(heads().glob("*.json")):
        try:
            known = LedgerHead(safe.stem).read()
        except ValueError:
            continue
        if known is not None and known.path == path.resolve():
            return safe.stem
    return ""


def _whole(file: Path) -> tuple[int, bytes]:
    """What a copy says, and after how many lines, if it is whole."""
    digest, numbered = file.read_bytes().split(b"\n", 1)
    if hashlib.sha256(numbered).hexdigest().encode() != digest:
        raise ValueError("it was changed, or cut short")
    lines, said = numbered.split(b"\n", 1)
    return int(lines), said
