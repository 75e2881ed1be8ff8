"""Thousands of damaged files: each is read, or refused in a line, and memory stays small."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.data import npz
from fedsofim.runs.directory import RunDir

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("features", "checkpoint", "config", "ledger", "metrics")


def fuzz(count: int, seed: int) -> dict[str, int]:
    """What a process of its own saw, so that its memory is its own, too."""
    script = str(ROOT / "scripts" / "fuzz_files.py")
    command = [sys.executable, script, "--count", str(count), "--seed", str(seed)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    seen: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return seen


def check(count: int, seed: int) -> None:
    seen = fuzz(count, seed)
    assert seen["megabytes"] < 1000
    for kind in KINDS:
        assert seen[f"{kind} refused"] > count / len(KINDS) / 2
    # Some changes change nothing that matters: else only the first check would be tested.
    assert sum(seen.get(f"{kind} read", 0) for kind in KINDS) > count / 200


def test_damaged_files_are_refused() -> None:
    check(1_000, seed=0)


@pytest.mark.slow
def test_a_hundred_thousand_damaged_files_are_refused() -> None:
    check(100_000, seed=1)


@pytest.mark.parametrize(
    ("way", "told"),
    [
        (zipfile.ZIP_BZIP2, "packed in a way that is not read here"),
        (zipfile.ZIP_LZMA, r"x claims 1,000,\d+ bytes, of a file of"),  # a million zeros
    ],
)
def test_what_could_be_a_bomb_is_not_unpacked(tmp_path: Path, way: int, told: str) -> None:
    np.savez(tmp_path / "plain.npz", x=np.zeros(1_000_000, np.uint8))
    with (
        zipfile.ZipFile(tmp_path / "plain.npz") as plain,
        zipfile.ZipFile(tmp_path / "other.npz", "w", way) as other,
    ):
        other.writestr("x.npy", plain.read("x.npy"))
    with pytest.raises(ConfigError, match=told):
        npz.read(tmp_path / "other.npz")


def test_an_archive_that_claims_more_than_its_file_can_hold(tmp_path: Path) -> None:
    """Both the archive and the array in it claim ten gigabytes, and agree."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000,), }"
    head = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    file, size = tmp_path / "bomb.npz", 10_000_000_000 + len(head)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", head + bytes(1000))
        archive.filelist[0].file_size = size  # as the list of contents tells it
        archive._didModify = True
    with pytest.raises(ConfigError, match=r"x claims 10,000,000,\d+ bytes, of a file of"):
        npz.read(file)


def test_an_array_that_claims_more_than_its_file_holds(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(1000))
    whole = (tmp_path / "x.npy").read_bytes()
    forged = whole.replace(b"(1000,), }      ", b"(1000000000,), }")
    assert len(forged) == len(whole)
    assert forged != whole
    (tmp_path / "x.npy").write_bytes(forged)
    with pytest.raises(ConfigError, match=r"not a readable \.npy file"):
        npz.array(tmp_path / "x.npy")


@pytest.mark.parametrize("read", [npz.read, npz.headers])
def test_what_is_said_to_be_encrypted_is_refused(tmp_path: Path, read: Any) -> None:
    file = tmp_path / "x.npz"
    np.savez(file, x=np.zeros(3))
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"PK\1\2") + 8] |= 1
    file.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"not a readable \.npz file"):
        read(file)


@pytest.mark.parametrize("read", [npz.read, npz.headers])
def test_a_header_that_is_no_python_is_refused(tmp_path: Path, read: Any) -> None:
    file = tmp_path / "x.npz"
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,"
    with zipfile.ZipFile(file, "w") as archive:
        start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        archive.writestr("x.npy", start + header + bytes(12))
    with pytest.raises(ConfigError, match=r"not a readable \.npz file"):
        read(file)


@pytest.mark.parametrize("line", ["on: 1", "seed: 2001-01-01", "seed: &a [*a]", "seed: !!set {a}"])
def test_a_config_that_json_cannot_hold_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "config.yaml").write_text(f"strategy:\n  {line}\n")
    with pytest.raises(ConfigError, match="not a config"):
        RunDir(tmp_path).config()


def test_a_number_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="rounds: too large a number"):
        parse({**compose(["rounds=3"]), "rounds": 10**400})
