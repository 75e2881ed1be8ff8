"""The methods as Flower strategies, by name.

A Flower app of your own can use them as any other strategy:

    rule = Sofim(rate=Rate(0.8), rho=0.5, beta=0.9)
    strategy = DPFedSOFIM(rule, Terms(job=..., clients=20, rounds=70))
    result = strategy.start(grid, ArrayRecord({"theta": Array(theta)}))
"""

from fedsofim.federation.strategy import RuleStrategy
from fedsofim.strategies.adafedprox import AdaFedProx
from fedsofim.strategies.adaptive import FedAdam, FedYogi
from fedsofim.strategies.alone import Alone
from fedsofim.strategies.fedavg import FedAvg
from fedsofim.strategies.fedfc import FedFC
from fedsofim.strategies.fedgd import FedGD
from fedsofim.strategies.ftrl import FTRL
from fedsofim.strategies.pfedsop import PFedSOP
from fedsofim.strategies.rule import Rule
from fedsofim.strategies.scaffold import Scaffold
from fedsofim.strategies.sofim import Sofim


class DPFedGD(RuleStrategy):
    """DP-FedGD on Flower."""

    kind = FedGD


class DPFedAvg(RuleStrategy):
    """DP-FedAvg on Flower."""

    kind = FedAvg


class DPFedFC(RuleStrategy):
    """DP-FedFC on Flower."""

    kind = FedFC


class DPSCAFFOLD(RuleStrategy):
    """DP-SCAFFOLD on Flower."""

    kind = Scaffold


class DPFedAdam(RuleStrategy):
    """DP-FedAdam on Flower."""

    kind = FedAdam


class DPFedYogi(RuleStrategy):
    """DP-FedYogi on Flower."""

    kind = FedYogi


class DPFTRL(RuleStrategy):
    """DP-FTRL on Flower."""

    kind = FTRL


class DPAdaFedProx(RuleStrategy):
    """DP-AdaFedProx on Flower."""

    kind = AdaFedProx


class DPFedSOFIM(RuleStrategy):
    """DP-FedSOFIM on Flower."""

    kind = Sofim


class PersonalizedSOP(RuleStrategy):
    """The method pFedSOP on Flower."""

    kind = PFedSOP


class LocalTraining(RuleStrategy):
    """Local-only training on Flower: clients send nothing."""

    kind = Alone


FLOWER: dict[type[Rule], type[RuleStrategy]] = {
    strategy.kind: strategy for strategy in RuleStrategy.__subclasses__()
}
