"""A client of your own, which looks ahead before it sends a gradient, and a rule for it:

fedsofim run strategy=client:Ahead strategy.lr=0.1 client.ahead=0.05
"""

from dataclasses import dataclass

from fedsofim.clients.program import Program, noisy_gradients
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.strategies.fedgd import FedGD


@dataclass(frozen=True, kw_only=True)
class LookAhead(Program):
    """It sends the gradient at the end of a first step of its own; both gradients are charged."""

    ahead: float = 0.1
    disclosure = Disclosure(
        releases=lambda n: 2 * n, shares_noise=False, record_moves_others=False, uses_part=False
    )

    def release(self, received, clients, state, plan, noise):
        x = received["theta"][None].repeat(len(clients), axis=0)
        y = x - self.ahead * noisy_gradients(x, clients, plan, noise, draw=0)
        return noisy_gradients(y, clients, plan, noise, draw=1), state


class Ahead(FedGD):  # DP-FedGD on these gradients
    client = LookAhead
