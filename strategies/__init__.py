"""Federated methods: one file each, found by name."""

from strategies.adafedprox import AdaFedProx
from strategies.adaptive import FedAdam, FedYogi
from strategies.alone import Alone
from strategies.fedavg import FedAvg
from strategies.fedfc import FedFC
from strategies.fedgd import FedGD
from strategies.ftrl import FTRL
from strategies.pfedsop import PFedSOP
from strategies.rule import Rule
from strategies.scaffold import Scaffold
from strategies.sofim import Sofim

STRATEGIES: dict[str, type[Rule]] = {
    "fedgd": FedGD,
    "fedavg": FedAvg,
    "fedfc": FedFC,
    "scaffold": Scaffold,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "ftrl": FTRL,
    "adafedprox": AdaFedProx,
    "sofim": Sofim,
    "pfedsop": PFedSOP,
    "fedavg_finetune": FedAvg,
    "alone": Alone,
}

__all__ = ["STRATEGIES", "Rule"]
