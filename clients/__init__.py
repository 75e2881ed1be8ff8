"""What clients compute on their own records, and release: one file a kind, found by name."""

from clients.gradient import Gradient
from clients.program import Client, Program

CLIENTS: dict[str, type[Program]] = {"gradient": Gradient}

__all__ = ["CLIENTS", "Client", "Gradient", "Program"]
