"""The methods as Flower strategies, by name.

A Flower app of your own can use them as any other strategy. Settings are those of the method, and
the quorum says who is asked and whose answers make a round:

    from fedsofim.federation import DPFedSOFIM, Quorum

    quorum = Quorum(job=config.text, clients=20, rounds=70)
    strategy = DPFedSOFIM(quorum, lr=0.8, rho=0.5, beta=0.9)
    result = strategy.start(grid, ArrayRecord([theta]))
"""

from dataclasses import dataclass
from typing import Any

from fedsofim.config.build import build
from fedsofim.federation.quorum import Quorum
from fedsofim.federation.strategy import RuleStrategy
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


@dataclass(frozen=True)
class Method:
    """A method; called with a quorum and its settings, it makes a Flower strategy."""

    rule: type[Rule]

    def __call__(self, quorum: Quorum, **settings: Any) -> RuleStrategy:
        """A Flower strategy with these settings, which are those of the rule."""
        return RuleStrategy(build(self.rule, settings, ""), quorum)


DPFedGD = Method(FedGD)
DPFedAvg = Method(FedAvg)
DPFedFC = Method(FedFC)
DPSCAFFOLD = Method(Scaffold)
DPFedAdam = Method(FedAdam)
DPFedYogi = Method(FedYogi)
DPFTRL = Method(FTRL)
DPAdaFedProx = Method(AdaFedProx)
DPFedSOFIM = Method(Sofim)
PersonalizedSOP = Method(PFedSOP)
DPDitto = Method(Ditto)
DPRidge = Method(Ridge)
LocalTraining = Method(Alone)
