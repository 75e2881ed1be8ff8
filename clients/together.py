"""What clients add to a sum of which only the total is ever seen: integers on a public grid.

Secure aggregation adds up integers modulo $2^{64}$. With exact noise they are what a client would
release alone, before it is made a mean; a simulation's fast sums are rounded to the same grid.
Integers add up to the same total in any order, so every engine finds the same mean, bit for bit.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedsofim.clients.group import Client, grouped
from fedsofim.clients.program import Noise, Program, stage_totals
from fedsofim.core.arrays import Array, Scale
from fedsofim.core.errors import require
from fedsofim.core.sums import BoundedSum
from fedsofim.models.crowd import gradient_sums
from fedsofim.models.records import Records
from fedsofim.privacy.mechanism import NoiseSource, Seeded
from fedsofim.privacy.plan import Plan, Protection
from fedsofim.privacy.shared import check_room
from fedsofim.strategies.stage import Stage


def in_units(total: BoundedSum, z: Scale, source: NoiseSource, unit: Scale) -> tuple[Array, Array]:
    """A sum and its noise, of std `bound * z`, both in whole units.

    Args:
        total: in exact integers if the noise is exact, else in floats.
        z: the noise multiplier.
        source: of the noise.
        unit: of the grid that all clients share.
    """
    noise = source.gaussian(total, z)
    if total.value.dtype == np.int64:
        require(total.unit == unit, f"unit={total.unit:g}: all clients add on the grid of {unit:g}")
        return total.value, noise
    return _whole(total.value, unit), _whole(noise, unit)


def _whole(values: Array, unit: Scale) -> Array:
    return np.asarray(np.rint(values.astype(np.float64) / unit).astype(np.int64))


def noisy_sums(
    theta: Array, clients: Sequence[Client], plan: Protection, noise: Noise, draw: int = 0
) -> Array:
    r"""Each client's clipped, noisy gradient sum in whole units, $S_i + E_i$, `(n, K, F+1)`.

    Args:
        theta: the broadcast parameters, `(K, F+1)`.
        clients: whose gradients.
        plan: the clip and the noise, a client's own part of it.
        noise: the noise stream of each client in this round.
        draw: the number of this call within the round.
    """
    out, group = np.empty((len(clients), *theta.shape), np.int64), grouped(clients)
    if isinstance(noise, Seeded) and (data := group.heads_data):
        sums = gradient_sums(np.broadcast_to(theta, out.shape), data, plan.clip)
        z, unit = plan.client_noise_multiplier, data[0].unit(plan.clip)
        drawn = noise.gaussians(sums, plan.clip, z, group.ids, draw)
        return _whole(sums, unit) + _whole(drawn, unit)
    for total, (i, D) in zip(out, clients, strict=True):
        source = noise(i, draw)
        S = D.gradient_sum(theta, plan.clip, source.exact)
        np.add(*in_units(S, plan.client_noise_multiplier, source, D.unit(plan.clip)), out=total)
    return out


def stage_sums(
    stage: Stage,
    t: int,
    clients: Sequence[Client],
    received: Mapping[str, Array],
    plan: Plan,
    noise: Noise,
) -> Array:
    """What each client adds before the first round, `(n, length)`: noisy sums in whole units.

    The arguments are those of `release_stage`, whose sums these are.
    """
    z, out = plan.stage_multiplier(t, stage.unit_sensitivity(plan.adjacency)), []
    for i, D in clients:
        source = noise(i, 0)
        units = [S.unit for S in stage.summed(D.part(slice(0)), True)]
        pairs = zip(stage_totals(stage, D, received, source.exact), units, strict=True)
        out.append(np.concatenate([np.add(*in_units(S, z, source, unit)) for S, unit in pairs]))
    return np.stack(out)


class Crowd(NamedTuple):
    """Whose integers are in a total.

    Attributes:
        clients: how many.
        records: how many they have together; public.
        like: any records of the same shape, for the grid; none is read.
    """

    clients: int
    records: int
    like: Records


def stage_mean(stage: Stage, t: int, plan: Plan, total: Array, crowd: Crowd) -> Array:
    """The mean over all records of a stage's sums, from their total, in float64."""
    blank = stage.summed(crowd.like.part(slice(0)), True)
    z = plan.stage_multiplier(t, stage.unit_sensitivity(plan.adjacency))
    for S in blank:
        check_room(crowd.records, float(S.bound), z * float(S.bound), crowd.clients)
    units = np.concatenate([np.full(S.value.size, S.unit) for S in blank])
    return np.asarray(total.astype(np.float64) * (units / crowd.records))


def round_mean(
    program: Program, received: Mapping[str, Array], plan: Protection, total: Array, crowd: Crowd
) -> Array:
    """What the server applies, from the total of a round, in float64."""
    unit = crowd.like.unit(plan.clip)
    bound, z = float(plan.clip / unit), float(plan.client_noise_multiplier)
    check_room(crowd.records, bound, z * bound, crowd.clients)
    mean = total.astype(np.float64) * (unit / crowd.records)
    return program.from_mean(received, mean)
