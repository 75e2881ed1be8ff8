"""What clients compute on their own records, and release: one file a kind, found by name."""

from clients.alone import Alone
from clients.covariance import Covariance
from clients.finetune import FineTune
from clients.gradient import Gradient
from clients.pfedsop import PFedSOP
from clients.program import Client, Program
from clients.scaffold import ScaffoldSteps
from clients.steps import LocalSteps
from clients.tree import Tree

CLIENTS: dict[str, type[Program]] = {
    "gradient": Gradient,
    "steps": LocalSteps,
    "scaffold": ScaffoldSteps,
    "tree": Tree,
    "covariance": Covariance,
    "pfedsop": PFedSOP,
    "finetune": FineTune,
    "alone": Alone,
}

__all__ = ["CLIENTS", "Client", "Program"]
