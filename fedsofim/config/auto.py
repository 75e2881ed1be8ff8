r"""Settings from public numbers alone: what `settings=auto` chooses, and why.

Nothing here sees a record, a label or an accuracy. docs/geometry.md derives the formulas.
"""

import math
from dataclasses import dataclass
from typing import Any

from fedsofim.core.errors import ConfigError, require
from fedsofim.core.sums import Adjacency
from fedsofim.privacy.accounting import mu_of
from fedsofim.privacy.mechanism import sensitivity
from fedsofim.privacy.plan import Trust
from fedsofim.strategies.average import Average

# Rounds; only their product with the rate matters, so as few as give stable steps.
ROUNDS = 20
# The clip, over the norm that whitened records have.
CLIP = 0.25
# How far the noise of the whole run may move a logit of one record.
LOGIT = 1.25
# How far a record may move its own margin, over log K: what there is to learn about it at first.
OWN = 0.0625
# What has a rule; with one local step, the last three are DP-FedGD.
STRATEGIES = ("sofim", "fedgd", "fedadam", "fedyogi", "fedavg", "adafedprox", "scaffold")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is public of a run's data.

    Attributes:
        records: how many all clients have, N.
        features: F.
        classes: K.
    """

    records: int
    features: int
    classes: int

    def __post_init__(self) -> None:
        for name in ("records", "features", "classes"):
            value = getattr(self, name)
            require(value >= 1, f"settings.{name}={value}: must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Budget:
    r"""What is public of a run's promise.

    Attributes:
        epsilon: of the run.
        delta: of the run.
        adjacency: what may change about a record.
        trust: who sees what.
        clients: how many take part in a round.
        share: the part of $\mu^2$ that is spent before the first round.
        part: of all clients, those that take part in a round.
        sharers: whose noise suffices, with `trust=aggregate`; 0 for that of all in a round.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = "replace-one"
    trust: Trust = "server"
    clients: int = 1
    share: float = 0.0
    part: float = 1.0
    sharers: int = 0

    def noise(self, clip: float, releases: int, records: int) -> float:
        """The std of a coordinate of the aggregate of all records' clipped gradients."""
        sharers = (self.sharers or self.clients) if self.trust == "aggregate" else 1
        mu = mu_of(self.epsilon, self.delta) * math.sqrt(1 - self.share)
        std = sensitivity(clip, self.adjacency) * math.sqrt(releases) / mu
        return std * math.sqrt(self.clients / sharers) / (records * self.part)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    r"""The settings of a plain descent, with momentum or without, and what they follow from.

    Attributes:
        clip: C, a quarter of a whitened record's norm: nearly all records are clipped alike.
        beta: of the momentum, over a fifth of the rounds.
        noise: $\sigma$, the std of a coordinate of the aggregate.
        lr: the smallest of three: the noise of the whole run moves a logit by `LOGIT`; Newton's
            rate of whitened softmax regression; and a record moves its own margin by `OWN` of
            log K.
        edge: whether Newton's rate is the smallest: steps then go to and fro about the optimum.
        floor: the square norm of the momentum of pure noise.
    """

    clip: float
    beta: float
    noise: float
    lr: float
    edge: bool
    floor: float


def choose(sizes: Sizes, budget: Budget, *, steps: int, momentum: bool) -> Chosen:
    """The rule, from public numbers.

    Args:
        sizes: of the data.
        budget: of the run.
        steps: of the whole run, each a release: rounds times local steps.
        momentum: whether steps are averaged.
    """
    N, K, width = sizes.records, sizes.classes, sizes.features + 1
    clip = CLIP * math.sqrt(width)
    beta = max(0.0, 1 - 4 / steps) if momentum else 0.0
    noise = budget.noise(clip, steps, N)
    moves = noise * math.sqrt(steps * width)  # a logit, for a rate of 1
    newton = K / CLIP if beta else K / (2 * CLIP)
    # p - e_y moves the margin by 1, and has the norm sqrt(1 - 1/K), at first.
    pulls = steps * clip * math.sqrt(width) / math.sqrt(1 - 1 / max(K, 2)) / N
    own = OWN * math.log(max(K, 2)) / pulls
    lr = min(LOGIT / moves if moves else math.inf, own, newton)
    floor = noise**2 * K * width * (1 - beta) / (1 + beta)
    edge = lr == newton
    return Chosen(clip=clip, beta=beta, noise=noise, lr=lr, edge=edge, floor=floor)


def settings_of(
    strategy: str, sizes: Sizes, budget: Budget, *, rounds: int, local_steps: int = 1
) -> tuple[float, dict[str, Any]]:
    """The clip, and the strategy's own settings as its config file names them."""
    if strategy not in STRATEGIES:
        raise ConfigError(
            f"settings=auto: has no rule for strategy={strategy}; use one of "
            f"{', '.join(STRATEGIES)}, or settings=published"
        )
    chosen = choose(sizes, budget, steps=rounds * local_steps, momentum=strategy == "sofim")
    if strategy == "sofim":
        rho = chosen.floor + CLIP**2
        momentum = {
            "lr": chosen.lr * (rho + chosen.floor + CLIP**2 / 2),
            "rho": rho,
            "beta": chosen.beta,
            "bias_correction": True,
            "warmup": 0,
        }
        return chosen.clip, {"momentum": _always(momentum)}
    if strategy in ("fedadam", "fedyogi"):
        lr = LOGIT / math.sqrt(rounds * (sizes.features + 1))
        adam = {"lr": lr, "beta1": max(0.0, 1 - 4 / rounds), "beta2": 0.999, "tau": 1e-8}
        return chosen.clip, _always(adam)
    if strategy == "fedgd":
        return chosen.clip, _always({"lr": chosen.lr})
    return chosen.clip, _always({"lr": 1.0, "client_lr": chosen.lr})


def average_of(
    strategy: str, sizes: Sizes, budget: Budget, *, rounds: int, local_steps: int = 1
) -> Average:
    """What to evaluate: at Newton's rate the mean of the last iterates, unless steps average.

    Below it the iterate is a sum of all that was released, and the last has the most of it.
    """
    if strategy in ("sofim", "fedadam", "fedyogi"):
        return "none"
    chosen = choose(sizes, budget, steps=rounds * local_steps, momentum=False)
    return "tail" if chosen.edge else "none"


def _always(values: dict[str, Any]) -> dict[str, Any]:
    """The same at every budget that a config file has settings for."""
    return {name: [value] * 5 for name, value in values.items()}


def told(sizes: Sizes, budget: Budget, clip: float, rounds: int, settings: dict[str, Any]) -> str:
    """One line: what was chosen, and from what."""
    noise = budget.noise(clip, rounds, sizes.records)
    values = settings.get("momentum", settings).items()
    shown = ", ".join(f"{name} {value[0]:.4g}" for name, value in values)
    return (
        f"settings=auto: clip {clip:.4g}, {shown}, for noise of {noise:.3g} a coordinate: from "
        f"{sizes.records:,} records, {sizes.features} features, {sizes.classes} classes, "
        f"{budget.clients} clients a round, epsilon {budget.epsilon:g}, trust {budget.trust}; no "
        "record was looked at"
    )


def chosen_in(note: str) -> dict[str, str]:
    """The values that a line of `told` says were chosen, as it writes them; none of other lines.

    >>> chosen_in("settings=auto: clip 2, lr 0.5, for noise of 1 a coordinate: from all")
    {'clip': '2', 'lr': '0.5'}
    """
    rule, _, rest = note.partition(": ")
    words = rest.partition(", for noise ")[0].split(", ") if rule == "settings=auto" else []
    return {name: value for name, _, value in (word.partition(" ") for word in words)}
