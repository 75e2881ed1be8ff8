"""The page of scripts/pfedsop_table.py."""

from pathlib import Path
from typing import Any


def write(
    docs: Path, table: dict[str, Any], shown: tuple[int, ...], epsilons: tuple[int, ...]
) -> None:
    """Write."""
