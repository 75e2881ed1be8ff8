"""Libraries that tests compare with and that a Python may lack: a test that uses one is skipped."""

import importlib
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


class Missing:
    """What stands for a library that is not installed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, _: str) -> Any:
        pytest.skip(f"needs {self.name}", allow_module_level=True)


def reference(name: str) -> ModuleType | Missing:
    """A library, or what skips the test that touches it."""
    found = find_spec(name.partition(".")[0]) is not None
    return importlib.import_module(name) if found else Missing(name)
