"""The FedFC client: gradients, after one noisy feature covariance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from fedsofim.clients.gradient import Gradient
from fedsofim.clients.program import Client, Noise

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.models.head import examples_of
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.plan import Protection


@dataclass(frozen=True, kw_only=True)
class Covariance(Gradient):
    r"""The client of DP-FedFC (Krouka et al. 2025).

    Once, before the first round, it sends $C_i = (\sum \tilde x\tilde x^\top + E) / |D_i|$ with
    features clipped to norm B and symmetric Gaussian noise. One record moves the sum by at most
    $\sqrt2\,B^2$ when replaced, $B^2$ when added or removed, and the release is charged.

    Attributes:
        bound: the largest norm of a record's features with the bias, B.
        setup_share: the part of the budget, of $\mu^2$, that the covariance spends.

    >>> Covariance(bound=5.0, setup_share=0.05).disclosure.setup_share
    0.05
    """

    setup_kind: ClassVar[str | None] = "covariance"
    bound: float
    setup_share: float

    def __post_init__(self) -> None:
        bound = self.bound
        require(1e-6 <= bound <= 1e6, f"bound={bound}: must be between 1e-6 and 1e6")
        share = self.setup_share
        require(0 < share < 1, f"setup_share={share}: must be between 0 and 1")

    @property
    def disclosure(self) -> Disclosure:
        return replace(super().disclosure, setup_share=self.setup_share)

    def setup(self, clients: Sequence[Client], plan: Protection, noise: Noise) -> Array:
        unit = math.sqrt(2) if plan.adjacency == "replace-one" else 1.0
        z = plan.client_setup_multiplier(unit)
        covariances = []
        for i, records in clients:
            D, source = examples_of(records), noise(i, 0)
            S = D.second_moment(self.bound, source.exact)
            upper = np.triu(source.gaussian(S, z))
            E = upper + np.triu(upper, 1).swapaxes(-1, -2)
            covariances.append(((S.value + E) * S.unit / D.size).astype(D.x.dtype))
        return np.stack(covariances)
