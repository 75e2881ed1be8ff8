"""What Hugging Face's `datasets` loads: folders, sets of the hub, and what their columns hold."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.data.classes import FORBIDDEN, LONGEST
from fedsofim.data.images import Batch, Reading, decode
from fedsofim.data.vision import optional

# What `save_to_disk` leaves, of one split and of several.
SAVED = ("state.json", "dataset_dict.json")


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((folder / name).is_file() for name in SAVED)


def from_disk(path: str | None, subset: str | None) -> Any:
    """What a folder holds: a data set, or one for each split."""
    folder = Path(str(path))
    told = "there is no such folder; a data set of the hub is dataset.hub=NAME"
    if folder.is_file():
        told = "not a folder; a table in one file is dataset=table"
    require(folder.is_dir(), f"dataset.path={folder}: {told}")
    library = _library()
    try:
        if is_saved(folder):
            return library.load_from_disk(str(folder))
        return library.load_dataset(str(folder), subset)
    except Exception as error:  # a damaged file can fail in any way
        raise ConfigError(f"{folder}: not a readable data set ({_told(error)})") from None


@lru_cache(maxsize=2)
def from_hub(hub: str, subset: str | None) -> Any:
    """A data set of the hub, fetched or from Hugging Face's own cache."""
    try:
        return _library().load_dataset(hub, subset)
    except ConfigError:
        raise
    except Exception as error:  # the network can fail in any way
        raise ConfigError(
            f"dataset.hub={hub}: cannot be had from the hub ({_told(error)}); a folder that "
            "save_to_disk wrote elsewhere is dataset.path=DIR"
        ) from None


def _library() -> Any:
    library = optional("datasets", "dataset=hf needs", "hf")
    library.disable_progress_bars()
    library.logging.set_verbosity_error()
    return library


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def is_image(data: Any, name: str) -> bool:
    """Whether a column holds images."""
    return type(data.features[name]).__name__ == "Image"


def is_list(data: Any, name: str) -> bool:
    """Whether a column holds lists of numbers."""
    kind = data.features[name]
    inner = getattr(getattr(kind, "feature", None), "dtype", "")
    return bool(re.match(r"u?int\d|float\d", str(inner))) and not hasattr(kind, "names")


def values(data: Any, name: str) -> list[Any]:
    """A column's values; of classes, their names."""
    kind, told = data.features[name], data[name][:]
    names: Mapping[int, str] = dict(enumerate(getattr(kind, "names", ())))
    return [names.get(value) for value in told] if names else list(told)


def writable(name: str) -> str:
    """A class's name without what would end it where it is written.

    >>> writable("tench, Tinca tinca")
    'tench Tinca tinca'
    """
    return name.translate(str.maketrans("", "", FORBIDDEN)).strip()[:LONGEST].strip()


def decoder(
    data: Any, column: str, reading: Reading, where: str
) -> Callable[[int], Iterator[Batch]]:
    """Reads the images of a column in batches."""
    kind = _library().Image(decode=False)
    coded = data.select_columns([column]).cast_column(column, kind)

    def batches(size: int) -> Iterator[Batch]:
        for start in range(0, len(coded), size):
            rows = coded[start : start + size][column]
            yield [
                _image(row, reading, f"{where}: record {start + i}") for i, row in enumerate(rows)
            ]

    return batches


def _image(row: Mapping[str, Any] | None, reading: Reading, what: str) -> Array:
    held = row or {}
    content, path = held.get("bytes"), held.get("path")
    require(bool(content or path), f"{what}: has no image")
    return decode(BytesIO(content) if content else Path(str(path)), reading, what)
