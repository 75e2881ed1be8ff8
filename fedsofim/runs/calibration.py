"""The noise for a budget, and the budget for a noise."""

from typing import NamedTuple

from fedsofim.config.schema import Config
from fedsofim.core.errors import require


class Calibration(NamedTuple):
    """How a config keeps its budget.

    Attributes:
        epsilon: what is spent, at most what was asked for.
        delta: of the promise.
        releases: how many releases of a clipped sum the run is worth to a record.
        noise_multiplier: the noise std over the clip, z.
        noise_std: of the noise on a sum.
        mu: the GDP parameter of the whole run.
        client_noise_std: of the noise that one client adds.
    """

    epsilon: float
    delta: float
    releases: float
    noise_multiplier: float
    noise_std: float
    mu: float
    client_noise_std: float


def calibration(config: Config) -> Calibration:
    """The noise that keeps a config's budget, or the budget that its noise spends."""
    plan = config.plan()
    require(config.private, "privacy.epsilon=inf: a run without privacy needs no noise")
    return Calibration(
        epsilon=plan.epsilon(),
        delta=plan.delta,
        releases=plan.releases,
        noise_multiplier=plan.noise_multiplier,
        noise_std=plan.noise_std,
        mu=plan.mu(),
        client_noise_std=plan.client_noise_multiplier * plan.clip,
    )
