"""What a client does in a round, as pure functions of arrays.

A program is written for a stack of clients: the local engine runs it for all of them at once, a
deployed client for itself alone, with equal results.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedsofim.clients.group import Client, grouped, require_records
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.sums import BoundedSum
from fedsofim.models.coded import BLOCK
from fedsofim.models.crowd import gradient_sums
from fedsofim.models.head import examples_of
from fedsofim.models.records import Records
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.mechanism import NoiseSource, Seeded, add_gaussian
from fedsofim.privacy.plan import Plan, Protection
from fedsofim.strategies.stage import Stage

# Where a client's noise comes from, by its id and the number of the draw within the round.
Noise = Callable[[int, int], NoiseSource]


class Stateless(NamedTuple):
    """The state of a client that remembers nothing between rounds."""


@dataclass(frozen=True, kw_only=True)
class Program(ABC):
    r"""A kind of client.

    Every class states what it discloses, in its own body. One that only inherits the `disclosure`
    of its base is refused when Python reads it: whoever changes what a client does must look at
    what it then discloses. Where that is the same, `return super().disclosure` says so.

    Attributes:
        needs: the names that the server must broadcast.
        every_round: whether it works only if each client takes part in every round.
        keeps_models: whether each client has a model of its own.
        gradients: whether a release is one mean gradient, at the parameters that were broadcast.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"theta"})
    every_round: ClassVar[bool] = False
    keeps_models: ClassVar[bool] = False
    gradients: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        require(
            "disclosure" in vars(cls),
            f"{cls.__name__}: does not state its disclosure; every kind of client must, in its own "
            "body",
        )
        if "release" in vars(cls) and "contribute" not in vars(cls):
            # What a base adds to a sum is not what this class releases.
            setattr(cls, "contribute", Program.contribute)  # noqa: B010

    @property
    def contributes(self) -> bool:
        """Whether it says what it adds to a sum of which only the total is seen."""
        return type(self).contribute is not Program.contribute

    @property
    @abstractmethod
    def disclosure(self) -> Disclosure:
        """What this program discloses: all that the accountant knows of it."""

    @property
    def noise_gain(self) -> float | None:
        """The noise of a release over that of one noisy gradient; `None` where it has no one size.

        It tells how much of an aggregate is noise. The accountant does not use it.
        """
        return None

    def init(self, theta: Array, clients: int) -> Any:
        """What clients remember before the first round: a NamedTuple of stacked arrays."""
        return Stateless()

    def personal(self, theta: Array, clients: Sequence[Client], state: Any) -> Array:
        """Each client's own model `(n, K, F+1)`, if `keeps_models`; it never leaves the client.

        Args:
            theta: the server's parameters, `(K, F+1)`.
            clients: whose models.
            state: what these clients remember, stacked in the same order.
        """
        return np.broadcast_to(theta, (len(clients), *theta.shape))

    @abstractmethod
    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Any,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Any]:
        """What each client sends in a round, `(n, ...)`, and what it remembers.

        Args:
            received: what the server broadcast, by name.
                Arrays may have a stack axis in front: independent heads on the same data.
            clients: one client alone, or all of a simulation.
            state: what these clients remember, stacked in the same order.
            plan: the clip and the noise.
            noise: the noise stream of each client in this round.
        """

    def contribute(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Any,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Any]:
        """What each client adds to a sum of which only the total is seen, and what it remembers.

        Integers `(n, ...)` in units of the records' own grid, for `privacy.trust=aggregate`: noisy
        sums of clipped gradients. The arguments are those of `release`, for one head. A class that
        releases something of its own, and does not say what it adds, is refused.
        """
        raise ConfigError(
            f"{type(self).__name__}: does not say what it adds to a sum; give it a method "
            "contribute, or use privacy.trust=server"
        )

    def from_mean(self, received: Mapping[str, Array], mean: Array) -> Array:
        """What the server applies, of the mean over all records that `contribute` adds up to."""
        return mean

    def train_own(
        self, received: Mapping[str, Array], clients: Sequence[Client], state: Any
    ) -> Any:
        """What clients remember after what they do for themselves, once they have released.

        It reads records as it likes, without clip or noise, so nothing that `release` sends may
        ever depend on what it changes. By default it is nothing.

        Args:
            received: what the server broadcast, by name.
            clients: those that released.
            state: what these clients remember after the release.
        """
        return state


def stage_totals(
    stage: Stage, records: Records, received: Mapping[str, Array], exact: bool
) -> tuple[BoundedSum, ...]:
    """What a client adds up before the first round, its records under the map that it received.

    For fast sums only features are mapped, one client at a time, and then forgotten; of many
    records that are not arrays yet, some at a time.
    """
    D, P = examples_of(records), received.get("P")
    if D.lazy and not exact:
        parts = D.through(None).chunks(BLOCK)
        sums = [stage_totals(stage, part, received, exact) for part in parts]
        together = zip(*sums, strict=True)
        return tuple(
            one._replace(value=sum(s.value for s in (one, *more))) for one, *more in together
        )
    if P is None or exact:
        return stage.summed(D.through(P), exact)
    return stage.summed(D.features_through(P), exact)


def release_stage(
    stage: Stage,
    t: int,
    clients: Sequence[Client],
    received: Mapping[str, Array],
    plan: Plan,
    noise: Noise,
) -> Array:
    r"""What each client sends before the first round, `(n, length)`: noisy sums over its size.

    Each sum gets noise in proportion to its bound, so one record is protected as `unit_sensitivity`
    says: the stage is $\mu$-GDP with the $\mu$ of `plan.stage_events()[t]`.

    Args:
        stage: what is asked for.
        t: its number, -1 for the last.
        clients: one client alone, or all of a simulation.
        received: what the server broadcast, by name.
        plan: the noise.
        noise: the noise stream of each client in this stage.
    """
    z = plan.stage_multiplier(t, stage.unit_sensitivity(plan.adjacency))
    for i, D in clients:
        require(D.size > 0, f"client {i} holds no records, and so has no mean to release")
    if isinstance(noise, Seeded):
        return _release_stages(stage, clients, received, z, noise)
    releases = []
    for i, D in clients:
        source = noise(i, 0)
        sums = [add_gaussian(S, z, source) for S in stage_totals(stage, D, received, source.exact)]
        releases.append((np.concatenate(sums) / D.size).astype(examples_of(D).x.dtype))
    return np.stack(releases)


def _release_stages(
    stage: Stage, clients: Sequence[Client], received: Mapping[str, Array], z: float, noise: Seeded
) -> Array:
    """The same of a simulation, with the noise of all clients drawn at once; same bits."""
    totals = [stage_totals(stage, D, received, exact=False) for _, D in clients]
    noisy = np.stack([np.concatenate([S.value for S in sums]) for sums in totals])[:, None]
    stds = [np.full(S.value.size, S.bound * z, noisy.dtype) for S in totals[0]]
    noisy += noise.gaussians(noisy, np.concatenate(stds), 1.0, [i for i, _ in clients], 0)
    noisy /= np.array([D.size for _, D in clients], noisy.dtype)[:, None, None]
    return np.asarray(noisy[:, 0])


def noisy_gradients(
    thetas: Array, clients: Sequence[Client], plan: Protection, noise: Noise, draw: int = 0
) -> Array:
    r"""Each client's clipped, noisy mean gradient, Eqs. (1) and (2): $(S_i + E_i) / |D_i|$.

    $S_i$ is the sum of per-example gradients clipped to C and $E_i \sim N(0, (C z_i)^2 I)$. Each
    call is charged: it is $\mu$-GDP for every record of the client, as `Plan.events` says.

    Args:
        thetas: each client's parameters, `(n, K, F+1)`, or `(n, S, K, F+1)` for a stack of heads.
        clients: whose gradients.
        plan: the clip and the noise.
        noise: the noise stream of each client in this round.
        draw: the number of this call within the round.

    Returns:
        One gradient a client, of the shape of `thetas`.
    """
    group = grouped(clients)
    require_records(group)
    z, data = plan.client_noise_multiplier, group.heads_data
    if isinstance(noise, Seeded) and data is not None:
        sums = gradient_sums(thetas, data, plan.clip)
        return noise.noisy_means(sums, plan.clip, z, group.ids, draw, data.sizes)
    out = np.empty(thetas.shape, thetas.dtype)
    for g, y, (i, D) in zip(out, thetas, clients, strict=True):
        source = noise(i, draw)
        S = D.gradient_sum(y, plan.clip, source.exact)
        np.divide(add_gaussian(S, z, source), D.size, out=g)
    return out
