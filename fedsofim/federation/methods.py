"""The methods as Flower strategies, by name.

A Flower app of your own can use them as any other strategy. Settings are those of the method. In
the place of Flower's `FedAvg`, with clients of any kind, of which `dropin.py` says more:

    from fedsofim.federation import DPFedSOFIM

    strategy = DPFedSOFIM(lr=0.8, rho=0.5, beta=0.9)
    result = strategy.start(grid, initial_arrays, num_rounds=20)

With our own clients, a quorum says who is asked and whose answers make a round:

    quorum = Quorum(job=config.text, clients=20, rounds=70)
    strategy = DPFedSOFIM(quorum, lr=0.8, rho=0.5, beta=0.9)
    result = strategy.start(grid, ArrayRecord([theta]))
"""

import inspect
from dataclasses import dataclass
from typing import Any, overload

from flwr.serverapp import strategy as flower

from fedsofim.config.build import build
from fedsofim.core.errors import require
from fedsofim.federation.dropin import ServerSide
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

    @overload
    def __call__(self, quorum: Quorum, **settings: Any) -> RuleStrategy: ...

    @overload
    def __call__(self, quorum: None = None, **settings: Any) -> ServerSide: ...

    def __call__(self, quorum: Quorum | None = None, **settings: Any) -> RuleStrategy | ServerSide:
        """A Flower strategy with these settings, which are those of the rule.

        Without a quorum it stands in the place of Flower's `FedAvg`, and takes its settings, too.
        """
        if quorum is not None:
            return RuleStrategy(build(self.rule, settings, ""), quorum)
        require(
            self.rule in SERVER_SIDE,
            f"{self.rule.__name__}: its clients need more than the parameters; give a quorum",
        )
        known = {*inspect.signature(flower.FedAvg.__init__).parameters, "sends"} - {"self"}
        theirs = {name: settings.pop(name) for name in known & settings.keys()}
        return ServerSide(build(self.rule, settings, ""), **theirs)


# Whose clients need nothing but the parameters, and send a gradient or a drift.
SERVER_SIDE = (FedGD, FedAvg, FedAdam, FedYogi, Sofim)
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
