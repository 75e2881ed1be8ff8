"""What clients compute on their own records, and release: one file a kind, found by name."""

from clients.covariance import Covariance
from clients.gradient import Gradient
from clients.local import LocalSteps
from clients.program import Client, Program
from clients.scaffold import ScaffoldSteps
from clients.tree import Tree

CLIENTS: dict[str, type[Program]] = {
    "gradient": Gradient,
    "local": LocalSteps,
    "scaffold": ScaffoldSteps,
    "tree": Tree,
    "covariance": Covariance,
}

__all__ = ["CLIENTS", "Client", "Program"]
