"""Canaries in a real run: records whose presence an adversary tries to read off one transcript.

In each of m places a fair coin chooses between two records, a canary and its opposite. The
adversary knows all other records and both candidates, sees every release, and guesses the coins of
which it is surest. How many it guesses bounds epsilon (Steinke, Nasr & Jagielski 2023).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from fedsofim.clients.group import Client, transformed
from fedsofim.clients.program import Noise, Program
from fedsofim.core.arrays import Array
from fedsofim.core.rng import Purpose, stream
from fedsofim.engines import local
from fedsofim.models.head import Examples, examples, examples_of
from fedsofim.models.head_sums import clipped_gradient_sum
from fedsofim.privacy.plan import Protection
from fedsofim.runs.experiment import Experiment, begin

# A canary's features are this many clips long: long enough to be clipped, short enough that the
# model is seldom sure of it.
LENGTH = 2.0


class Places(NamedTuple):
    """Where a client's canaries are, and what may be there.

    Attributes:
        slots: their columns among the client's records, `(m,)`.
        canaries: the records that are there if a coin shows heads.
        others: those that are there if not.
        heads: what the coins showed, `(m,)`.
    """

    slots: Array
    canaries: Examples
    others: Examples
    heads: Array


def choose_places(
    data: Examples, count: int, clip: float, absent: bool, rng: np.random.Generator
) -> Places:
    """Random canaries for a client: directions, labels and coins.

    Args:
        data: the client's records, some of which make room.
        count: how many canaries, m.
        clip: of the run.
        absent: whether the other record is none at all, rather than the opposite one.
        rng: of this client's canaries; the run's noise has other streams.
    """
    classes, width = len(data.target), len(data.x) - 1
    x = rng.standard_normal((count, width))
    x *= LENGTH * clip / np.linalg.norm(x, axis=1, keepdims=True)
    labels = rng.integers(classes, size=count)
    a, b = (examples(v.astype(data.x.dtype), labels, classes) for v in (x, -x))
    if absent:
        b.x[:] = 0
    slots = np.sort(rng.choice(data.size, count, replace=False))
    return Places(slots, a, b, rng.random(count) < 0.5)


def put(data: Examples, places: Places) -> Examples:
    """The client's records with what the coins chose in their places."""
    x, target, norm = (array.copy() for array in data[:3])
    for own, a, b in zip((x, target, norm), places.canaries[:3], places.others[:3], strict=True):
        own[..., places.slots] = np.where(places.heads, a, b)
    return Examples(x, target, norm)


class Seen(NamedTuple):
    """One round as the adversary sees it; what clients remember follows from what they sent."""

    received: Mapping[str, Array]
    clients: Sequence[Client]
    state: Any
    released: Array


def watched(program: Program, on_release: Callable[[Seen], None]) -> Program:
    """The same program, with somebody listening to what is sent."""
    kind = type(program)

    def release(
        self: Program,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Any,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Any]:
        released, after = kind.release(self, received, clients, state, plan, noise)
        on_release(Seen(received, clients, state, released))
        return released, after

    def contribute(
        self: Program,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Any,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Any]:
        added, after = kind.contribute(self, received, clients, state, plan, noise)
        pairs = zip(added, clients, strict=True)
        means = [sums * (D.unit(plan.clip) / D.size) for sums, (_, D) in pairs]
        released = np.stack([self.from_mean(received, mean) for mean in means])
        on_release(Seen(received, clients, state, released))
        return added, after

    # Nothing else is sent.
    own = {"release": release, "contribute": contribute, "disclosure": kind.disclosure}
    listening: Any = type(kind.__name__, (kind,), own)
    values = {field.name: getattr(program, field.name) for field in fields(program)}
    return listening(**values)  # type: ignore[no-any-return]


@dataclass
class Adversary:
    """Adds up how much each canary shows in what is released.

    Args:
        places: of each client's canaries.
        rest: each client's records that everybody knows: those in no canary's place.
        clip: of the run.
        together: whether only the sum of all clients is seen.
    """

    places: list[Places]
    rest: list[Examples]
    clip: float
    together: bool

    def __post_init__(self) -> None:
        self.scores = [np.zeros(len(p.slots)) for p in self.places]
        self.awake = False  # until the run begins: a config's check tries its client program, too

    def listen(self, seen: Seen) -> None:
        """Take in one round."""
        if not self.awake:
            return
        sizes = [client.data.size for client in seen.clients]
        released = seen.released.reshape(len(sizes), -1).astype(np.float64)
        released *= np.array(sizes)[:, None]
        known, signs = [], []
        for place, client in enumerate(seen.clients):
            theta = seen.state.theta[place] if "drift" in seen.received else seen.received["theta"]
            known.append(self._known(client.id, theta, seen))
            signs.append(self._differences(client.id, theta, seen))
            if "c" in seen.received:
                turn = (seen.received["c"] - seen.state.c[place]).ravel()
                known[-1] = np.stack([*known[-1], turn.astype(np.float64)])
        if self.together:
            released = np.broadcast_to(released.sum(axis=0), released.shape)
            known = [sum(known)] * len(known)  # type: ignore[list-item]
        for place, client in enumerate(seen.clients):
            clean = _without(released[place], known[place])
            self.scores[client.id] += signs[place] @ clean

    @property
    def heads(self) -> Array:
        """What all coins showed, `(m,)`."""
        return np.concatenate([place.heads for place in self.places])

    def right(self, guesses: int) -> int:
        """How many are right of an even number of guesses, half of them heads, the surest ones."""
        scores = np.concatenate([s / max(float(s.std()), 1e-300) for s in self.scores])
        order, half, heads = np.argsort(scores), guesses // 2, self.heads
        return int((~heads[order[:half]]).sum() + heads[order[len(order) - half :]].sum())

    def _known(self, client: int, theta: Array, seen: Seen) -> Array:
        """What the known records, and the canaries on average, contribute, `(1, d)`."""
        place = self.places[client]
        total = np.zeros(theta.shape)
        for weight, data in ((1.0, self.rest[client]), (0.5, place.canaries), (0.5, place.others)):
            total += weight * clipped_gradient_sum(theta, _under(data, seen), self.clip)
        return total.reshape(1, -1)

    def _differences(self, client: int, theta: Array, seen: Seen) -> Array:
        """Half of what each canary and its opposite differ by, `(m, d)`."""
        place = self.places[client]
        a, b = (
            np.stack(
                [
                    clipped_gradient_sum(theta, data.part(slice(i, i + 1)), self.clip).ravel()
                    for i in range(data.size)
                ]
            )
            for data in (_under(place.canaries, seen), _under(place.others, seen))
        )
        return np.asarray((a.astype(np.float64) - b) / 2)


def _under(data: Examples, seen: Seen) -> Examples:
    (client,) = transformed([Client(0, data)], seen.received)
    return examples_of(client.data)


def _without(numbers: Array, directions: Array) -> Array:
    """What is left of some numbers when known directions, of whatever size, are taken out."""
    weights, *_ = np.linalg.lstsq(directions.T, numbers, rcond=None)
    return np.asarray(numbers - weights @ directions)


def canary_run(experiment: Experiment, count: int) -> Adversary:
    """Run an experiment with `count` canaries, and return what the adversary made of it."""
    config, clients = experiment.config, experiment.clients
    absent = config.privacy.adjacency == "add-remove"
    each = max(1, count // len(clients))
    places, rest, planted = [], [], []
    for i, data in clients:
        own = examples_of(data)
        rng = stream(config.seed, Purpose.AUDIT, i)
        place = choose_places(own, min(each, own.size // 2), config.privacy.clip, absent, rng)
        others = np.setdiff1d(np.arange(own.size), place.slots)
        places.append(place)
        rest.append(own.part(others))
        planted.append(Client(i, put(own, place)))
    adversary = Adversary(places, rest, config.privacy.clip, config.privacy.trust == "aggregate")
    program = watched(config.client, adversary.listen)
    audited = experiment._replace(config=replace(config, client=program), clients=planted)
    adversary.awake = True
    local.run(audited, begin(audited), lambda now, G, **notes: False)
    return adversary
