"""Downloads: whole and checked, or not at all."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from fedsofim.core.errors import ConfigError, require

CHUNK = 1 << 20
TIMEOUT = 30  # seconds without a byte
# Called with what is being done, and how much of how much is done.
Watch = Callable[[str, int, int], None]
EXTRACTING = "extracting features"


def silent(what: str, done: int, total: int) -> None:
    """A watch that shows nothing."""


def download(url: str, target: Path, checksum: str, watch: Watch = silent) -> Path:
    """Fetch `url` to `target`, which appears only when it is complete and right.

    Args:
        url: where it is.
        target: the file to make.
        checksum: `md5:` or `sha256:` and the beginning, or all, of the hex digest.
        watch: shown the progress, in bytes.
    """
    import urllib.request  # slow to import, and seldom needed

    algorithm, _, expected = checksum.partition(":")
    total = hashlib.new(algorithm, usedforsecurity=False)
    draft = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, open(draft, "wb") as file:
            length = int(answer.headers.get("Content-Length") or 0)
            done = 0
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                total.update(chunk)
                done += len(chunk)
                watch(f"downloading {target.name}", done, length)
        require(done >= length, f"it ended after {done} of {length} bytes")
        require(total.hexdigest().startswith(expected), f"its {algorithm} is {total.hexdigest()}")
        draft.replace(target)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the download of {url} failed ({getattr(error, 'reason', error)}); "
            f"place {target.name} ({algorithm} {expected}) in {target.parent} yourself"
        ) from None
    finally:
        draft.unlink(missing_ok=True)
    return target
