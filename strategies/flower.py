"""The methods as Flower strategies, by name.

from strategies.flower import DPFedSOFIM
from strategies.sofim import Sofim

strategy = DPFedSOFIM(Sofim(lr=0.8, rho=0.5, beta=0.9), terms)
result = strategy.start(grid, initial_arrays)
"""

from strategies.base import RuleStrategy
from strategies.fedgd import FedGD
from strategies.rule import Rule
from strategies.sofim import Sofim


class DPFedGD(RuleStrategy):
    """DP-FedGD on Flower."""

    kind = FedGD


class DPFedSOFIM(RuleStrategy):
    """DP-FedSOFIM on Flower."""

    kind = Sofim


FLOWER: dict[type[Rule], type[RuleStrategy]] = {
    strategy.kind: strategy for strategy in (DPFedGD, DPFedSOFIM)
}
