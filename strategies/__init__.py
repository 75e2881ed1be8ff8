"""Federated methods: one file each, found by name."""

from fedsofim.strategies.adafedprox import AdaFedProx
from fedsofim.strategies.adaptive import FedAdam, FedYogi
from fedsofim.strategies.alone import Alone
from fedsofim.strategies.ditto import Ditto
from fedsofim.strategies.fedavg import FedAvg
from fedsofim.strategies.fedfc import FedFC
from fedsofim.strategies.fedgd import FedGD
from fedsofim.strategies.ftrl import FTRL
from fedsofim.strategies.pfedsop import PFedSOP
from fedsofim.strategies.ridge import Ridge
from fedsofim.strategies.rule import Rule
from fedsofim.strategies.scaffold import Scaffold
from fedsofim.strategies.sofim import Sofim

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
    "ditto": Ditto,
    "ridge": Ridge,
    "alone": Alone,
}

__all__ = ["STRATEGIES", "Rule"]
