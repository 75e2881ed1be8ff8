"""Every example in a docstring does what it shows."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("strategies", "clients", "data")


def names():
    for room in ("fedsofim", *ROOMS):
        for file in sorted((ROOT / room).rglob("*.py")):
            if ">>>" in file.read_text():
                name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
                yield name if room == "fedsofim" else f"fedsofim.{name}"


@pytest.mark.parametrize("name", names())
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
