"""Federated methods: one file each, found by name."""

from strategies.fedgd import FedGD
from strategies.rule import Rule
from strategies.sofim import Sofim

STRATEGIES: dict[str, type[Rule]] = {"fedgd": FedGD, "sofim": Sofim}

__all__ = ["STRATEGIES", "FedGD", "Rule", "Sofim"]
