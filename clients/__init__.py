"""What clients compute on their own records, and release: one file a kind, found by name."""

from fedsofim.clients.alone import Alone
from fedsofim.clients.ditto import Ditto
from fedsofim.clients.finetune import FineTune
from fedsofim.clients.gradient import Gradient
from fedsofim.clients.group import Client
from fedsofim.clients.pfedsop import PFedSOP
from fedsofim.clients.program import Program
from fedsofim.clients.scaffold import ScaffoldSteps
from fedsofim.clients.silent import Silent
from fedsofim.clients.steps import LocalSteps
from fedsofim.clients.tree import Tree

CLIENTS: dict[str, type[Program]] = {
    "gradient": Gradient,
    "steps": LocalSteps,
    "scaffold": ScaffoldSteps,
    "tree": Tree,
    "pfedsop": PFedSOP,
    "finetune": FineTune,
    "ditto": Ditto,
    "silent": Silent,
    "alone": Alone,
}

__all__ = ["CLIENTS", "Client", "Program"]
