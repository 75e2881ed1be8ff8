"""Reading `.npz` files: whole and checked, or one array at a time in batches of rows.

An archive's arrays are streamed, so a file of images larger than memory can be read.
"""

import hashlib
import json
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.models.coded import Rows, blocks

# What reading a damaged archive can raise: zipfile, for one that is said to be encrypted, a
# RuntimeError, and NumPy, for a header that is no Python, what Python's own tokenizer does.
DAMAGE = (
    *(OSError, ValueError, EOFError, KeyError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(tokenize.TokenError, SyntaxError),
)
# How many times its packed size an array can have: NumPy stores or deflates, and the embedded
# features of VGG-16 are packed by LZMA, not as tightly as this.
LARGEST = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032, zipfile.ZIP_LZMA: 64}
PROVENANCE, SHA256 = "provenance", "sha256"
MAPPED = 1 << 24  # bytes from which an array may be mapped


class Header(NamedTuple):
    """What an array is, before it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool = False


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Turn every error of reading `file` into a `ConfigError` that begins with the file's name."""
    try:
        yield
    except ConfigError as error:
        told = str(error)
        raise ConfigError(told if told.startswith(str(file)) else f"{file}: {told}") from None
    except DAMAGE as error:
        raise ConfigError(f"{file}: not a readable {file.suffix} file ({error})") from None


def headers(file: Path) -> dict[str, Header]:
    """The arrays of an archive, by name; only headers are read."""
    with naming(file), zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        out = {}
        for name in names:
            with archive.open(f"{name}.npy") as stream:
                out[name] = _header(stream)
        return out


def rows(file: Path, name: str, size: int) -> Iterator[Array]:
    """The array `name`, at most `size` rows at a time, in order; one batch is in memory."""
    with naming(file), zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as stream:
        shape, dtype, fortran_order = _header(stream)
        require(not fortran_order, f"{name} is in Fortran order; save it in C order")
        row = dtype.itemsize * int(np.prod(shape[1:]))
        for start in range(0, shape[0], size):
            count = min(size, shape[0] - start)
            content = stream.read(count * row)
            require(len(content) == count * row, f"{name} ends after {start} of {shape[0]} rows")
            yield np.frombuffer(content, dtype).reshape(count, *shape[1:])
        stream.read(1)  # the end of the array, where the archive's checksum is compared


def read(file: Path, *names: str, mapped: bool = False) -> dict[str, Array]:
    """The arrays with these names, or all; those that are not there are left out.

    With `mapped`, large ones that are not packed stay in the file, and are read where they lie.
    """
    with naming(file):
        with zipfile.ZipFile(file) as archive:  # np.load would take a lone .npy as well
            _check_sizes(archive, names, file.stat().st_size)
            large = _large(archive, names) if mapped else {}
            found = {name: _mapped(file, archive, member) for name, member in large.items()}
        with np.load(file, allow_pickle=False) as arrays:
            wanted = [name for name in names or arrays.files if name in arrays]
            return {name: found[name] if name in found else arrays[name] for name in wanted}


def _large(archive: zipfile.ZipFile, names: Sequence[str]) -> dict[str, zipfile.ZipInfo]:
    """The members that are worth mapping, and can be."""
    plain = [m for m in archive.infolist() if m.compress_type == zipfile.ZIP_STORED]
    large = {m.filename.removesuffix(".npy"): m for m in plain if m.file_size >= MAPPED}
    return {name: member for name, member in large.items() if not names or name in names}


def _mapped(file: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """An array where it lies in the file, once it has its checksum."""
    with archive.open(member) as stream:
        shape, dtype, fortran_order = _header(stream)
        skip = stream.tell()
        require(not dtype.hasobject, f"{member.filename} holds objects, not numbers")
        while stream.read(1 << 20):  # at the end the checksum is compared
            pass
    with open(file, "rb") as stream:
        stream.seek(member.header_offset + 26)
        skip += sum(struct.unpack("<HH", stream.read(4)))  # the lengths of a name and of extras
    order: Literal["F", "C"] = "F" if fortran_order else "C"
    return np.memmap(file, dtype, "r", member.header_offset + 30 + skip, shape, order)


def array(file: Path) -> Array:
    """The array of a `.npy` file, which must hold as much as its header claims."""
    with naming(file):  # mapped first: NumPy takes memory for what a header claims
        return np.array(np.load(file, mmap_mode="r", allow_pickle=False))


def _check_sizes(archive: zipfile.ZipFile, names: Sequence[str], size: int) -> None:
    """Refuse an array that claims more than the archive holds, before memory is taken for it.

    What the archive itself claims is compared with the file: no way to pack that is read here
    makes an array smaller than by its factor.
    """
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename or (names and name not in names):
            continue
        require(member.compress_type in LARGEST, f"{name} is packed in a way that is not read here")
        most = LARGEST[member.compress_type] * min(member.compress_size, size)
        told = f"{name} claims {member.file_size:,} bytes, of a file of {size:,}"
        require(member.file_size <= most, told)
        with archive.open(member) as stream:
            shape, dtype, _ = _header(stream)
            held = member.file_size - stream.tell()
        claimed = dtype.itemsize * math.prod(shape)
        require(
            dtype.hasobject or claimed == held,
            f"{name} is {dtype} {shape}, of {claimed:,} bytes, and {held:,} are there",
        )


def _header(stream: IO[bytes]) -> Header:
    version = npy.read_magic(stream)
    require(version in ((1, 0), (2, 0)), f".npy version {version} is not known")
    parse = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran_order, dtype = parse(stream)
    return Header(shape, dtype, fortran_order and len(shape) > 1)


def digest(arrays: Mapping[str, Array]) -> str:
    """The SHA-256 of named arrays: their names, types, shapes and content; not of `sha256`."""
    total = hashlib.sha256()
    for name in sorted(arrays.keys() - {SHA256}):
        array = arrays[name]
        if isinstance(array, Rows):  # made in parts
            parts = [array[part] for part in blocks(len(array))]
        else:
            parts = [array := np.ascontiguousarray(array)]
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        for part in map(np.asarray, parts):
            total.update(part.data if part.dtype.kind in "biuf" else part.tobytes())
    return total.hexdigest()


def key(about: Mapping[str, object]) -> str:
    """A name for what is decided by these values."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]


def seal(arrays: Mapping[str, Array], provenance: Mapping[str, object]) -> dict[str, Array]:
    """The arrays with where they come from, and a hash over all of it."""
    text = json.dumps(provenance, indent=1, sort_keys=True)
    sealed = {**arrays, PROVENANCE: np.array(text)}
    return {**sealed, SHA256: np.array(digest(sealed))}


def check_seal(arrays: Mapping[str, Array]) -> None:
    """Refuse arrays that are not what was sealed; those that never were have nothing to check."""
    if SHA256 in arrays:
        require(
            str(arrays[SHA256]) == digest(arrays),
            "damaged, or changed since it was written: its content does not have its hash",
        )


def provenance(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Where sealed arrays come from; empty for others."""
    return dict(json.loads(str(arrays[PROVENANCE]))) if PROVENANCE in arrays else {}
