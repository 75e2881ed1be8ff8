"""DP-FTRL: gradient descent on prefix sums whose noise comes from a tree."""

from dataclasses import dataclass

from fedsofim.strategies.fedgd import FedGD

from fedsofim.core.errors import require


@dataclass(frozen=True, kw_only=True)
class FTRL(FedGD):
    r"""DP-FTRL without momentum.

    $$\theta_t = \theta_0 - \eta \sum_{s<t} G_s$$

    Each step adds G to the running sum; the clients' noise is correlated so that it cancels there,
    which is all that differs from DP-FedGD. It does so only if every G weighs the same.

    References:
        Kairouz et al. 2021, https://arxiv.org/abs/2103.00039.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.schedule == "constant",
            f"schedule={self.schedule}: the tree's noise cancels under a constant rate only",
        )
