"""Who the clients of a deployment are, by their public keys: what each owner pins.

A file has a line for each client, its number and its SuperNode's public key as OpenSSH writes it:

    0 ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQ...

With these keys a client knows the others from clients that a server has made up. So the file, or
its digest, must come from the owners themselves, and not from the server alone.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedsofim.core.errors import ConfigError, require


class Peers(NamedTuple):
    """All clients' public keys, in OpenSSH's words, by number."""

    keys: Mapping[int, str]

    @property
    def digest(self) -> str:
        """A name for the whole list, which is part of the terms of a run."""
        lines = "".join(f"{i} {key}\n" for i, key in sorted(self.keys.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def text(self) -> str:
        """The file."""
        return "".join(f"{i} {key}\n" for i, key in sorted(self.keys.items()))


def numbered(files: Sequence[Path]) -> Peers:
    """The peers whose public keys are in these files, numbered from 0 in this order."""
    keys: dict[int, str] = {}
    for i, file in enumerate(files):
        check_public(file)
        key = public_line(file)
        require(key not in keys.values(), f"{file}: this key is another client's, too")
        keys[i] = key
    return Peers(keys)


def check_public(file: Path) -> None:
    """Refuse a file that does not hold a client's public key."""
    from fedsofim.secagg.primitives import load_public

    line = public_line(file)
    try:
        load_public(line.encode())
    except Exception:
        raise ConfigError(f"{file}: not a client's public key, as client.pub is") from None


def public_line(file: Path) -> str:
    """A public key's kind and its number, without the comment."""
    try:
        words = file.read_text("ascii").split()
    except (OSError, UnicodeError):
        raise ConfigError(f"{file}: not a readable public key") from None
    require(len(words) >= 2, f"{file}: not a public key as OpenSSH writes it")
    return f"{words[0]} {words[1]}"


def read_peers(file: Path) -> Peers:
    """The peers of a file, checked."""
    from fedsofim.secagg.primitives import load_public

    keys: dict[int, str] = {}
    try:
        lines = file.read_text("ascii").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{file}: not a readable list of keys ({error})") from None
    for place, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        good = len(words) >= 3 and words[0].isdecimal()
        require(good, f"{file}, line {place}: must be a number and a public key")
        number, key = int(words[0]), f"{words[1]} {words[2]}"
        require(number not in keys, f"{file}, line {place}: client {number} has a key already")
        require(key not in keys.values(), f"{file}, line {place}: this key is another client's")
        try:
            load_public(key.encode())
        except Exception:
            raise ConfigError(f"{file}, line {place}: not a public key") from None
        keys[number] = key
    require(sorted(keys) == list(range(len(keys))), f"{file}: clients must be numbered from 0")
    require(len(keys) >= 2, f"{file}: names {len(keys)} clients; a sum needs at least two")
    return Peers(keys)
