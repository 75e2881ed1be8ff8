"""The worst pair of neighbours for a client program, and what an adversary sees of it.

D and D' differ in the label of one record of two classes: its clipped gradient is then exactly the
opposite, whatever the features and the transform are, so the sum moves by all that is charged. The
pair does not depend on anybody's data. The adversary is a server that chooses what it broadcasts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedsofim.clients.group import Client, transformed
from fedsofim.clients.program import Noise, Program
from fedsofim.clients.steps import LocalSteps
from fedsofim.config.schema import Config
from fedsofim.core.arrays import Array
from fedsofim.core.rng import Purpose, stream
from fedsofim.core.sums import Adjacency
from fedsofim.models.head import Examples, examples
from fedsofim.models.head_sums import clipped_gradient_sum
from fedsofim.models.kinds import HeadNetwork
from fedsofim.models.records import Factors
from fedsofim.privacy.audit import Samples
from fedsofim.privacy.plan import Plan
from fedsofim.privacy.reachability import reachable
from fedsofim.strategies.rule import broadcast, start

# The noise of a round, or of the set-up, by the number of the round.
NoiseOf = Callable[[int], Noise]

FEATURES, CLASSES = 3, 2
# The record's gradient is this many clips long, so that it stays clipped when the model moves.
SATURATION = 4.0
MOST_RECORDS = 2048
# In the eighth of so many rounds the server shows a model that is sure of the record: where noise
# is reused, the difference to another round is bare.
SURE, SURE_EVERY = 7, 16


class Pair(NamedTuple):
    """Two neighbouring data sets."""

    D: Examples
    other: Examples


def of_records(features: Array, labels: Sequence[int], classes: int, present: int) -> Examples:
    """Examples of which all but the first `present` contribute nothing, and are only counted."""
    data = examples(features.astype(np.float32), np.asarray(labels), classes)
    data.x[:, present:] = data.target[:, present:] = data.norm[present:] = 0
    return data


def opposite(size: int, length: float, adjacency: Adjacency) -> Pair:
    """Neighbours that differ in one record: its gradient is reversed or, for add-remove, absent.

    Args:
        size: how many records there are.
        length: of the one record's features.
        adjacency: what neighbours are.
    """
    x = np.zeros((size, FEATURES))
    x[0, 0] = length
    labels = [0] * size
    D = of_records(x, labels, CLASSES, 1)
    if adjacency == "add-remove":
        return Pair(D, of_records(x, labels, CLASSES, 0))
    return Pair(D, of_records(x, [1, *labels[1:]], CLASSES, 1))


def antipodal(clip: float, rng: np.random.Generator, width: int, size: int) -> Pair:
    """Neighbours whose sums differ in every number, for a test of single numbers.

    Args:
        clip: of the run.
        rng: draws the records.
        width: how many features.
        size: how many records; all but one are the same.
    """
    x = rng.standard_normal((size, width)) * max(1.0, SATURATION * clip)
    labels = np.arange(size) % CLASSES
    changed = labels.copy()
    changed[0] = 1 - labels[0]
    return Pair(*(of_records(x, list(y), CLASSES, size) for y in (labels, changed)))


class Stage(NamedTuple):
    """A client program under audit, and what is needed to try it.

    Attributes:
        config: the run's.
        program: what clients do: the config's, or a faulty one that the audit should catch.
        plan: the noise.
        noise_of: where it comes from.
    """

    config: Config
    program: Program
    plan: Plan
    noise_of: NoiseOf

    def factors(self) -> Factors | None:
        """The transform that the server broadcasts, measured on probes of the pair's shape."""
        rng = stream(self.config.seed, Purpose.PROBE)
        x = rng.standard_normal((256, FEATURES)).astype(np.float32)
        probes = HeadNetwork(FEATURES, CLASSES).records(x, np.arange(256) % CLASSES)
        shared = self.config.transform.refresh(0, self._theta(), probes, None)
        return shared if isinstance(shared, Factors) else None

    def received(self, t: int, rounds: int, length: float) -> dict[str, Array]:
        """What the server broadcasts in round `t`: a model that knows nothing, or a sure one."""
        theta = self._theta()
        if t and t % SURE_EVERY == min(SURE, rounds - 1):
            theta[0, 0] = 20 / length
        factors = self.factors()
        state = start(self.config.strategy, theta)
        return broadcast(
            self.config.strategy, state if factors is None else state._replace(shared=factors)
        )

    def pair(self, rounds: int) -> tuple[Pair, float]:
        """The worst pair, and the length of the one record's features."""
        clip, unit = self.plan.clip, self._gradient(opposite(1, 1.0, "replace-one").D, math.inf)
        length = max(1.0, SATURATION * clip / max(float(np.linalg.norm(unit)), 1e-9))
        # Local noise must not teach the model the record: the more records, the smaller it is.
        lr, steps = getattr(self.program, "lr", 0.0), getattr(self.program, "steps", 1)
        walked = steps * (rounds if self.program.keeps_models else 1) - 1
        std = clip * self.plan.client_noise_multiplier
        size = math.ceil(lr * std * math.sqrt(2 * walked) * length / 0.5)
        least = 2 * getattr(self.program, "batches", 1)
        return opposite(min(max(size, least), MOST_RECORDS), length, self.plan.adjacency), length

    def rounds(self, rounds: int, trials: int) -> Samples:
        """What is seen of the one record in each round, under D and under D'."""
        pair, length = self.pair(rounds)
        direction = self._gradient(pair.D, self.plan.clip).ravel().astype(np.float64)
        direction /= np.linalg.norm(direction)
        clients, state = self.clients(pair, trials), None
        seen = []
        for t in range(rounds):
            received = self.received(t, rounds, length)
            if state is None:
                state = self.program.init(received["theta"], len(clients))
            group = transformed(clients, received)
            released, state = self.program.release(
                received, group, state, self.plan, self.noise_of(t)
            )
            seen.append(self.together(released.reshape(len(released), -1).astype(np.float64)))
        numbers = np.stack(seen, axis=1)
        shown = numbers @ direction
        rest = (numbers - shown[..., None] * direction)[self._first_half(trials)]
        noise = np.swapaxes(rest, 1, 2).reshape(-1, rounds)
        # The numbers are as many as the parameters, and one direction of them was taken out.
        noise *= math.sqrt(len(direction) / (len(direction) - 1))
        return Samples(shown[:trials], shown[trials:], noise)

    def consistent(self, trials: int, width: int = 40, size: int = 8) -> Samples:
        """By how many more numbers one release agrees with D's sum than with that of D'.

        Local steps are cut down to one of rate 1, whose drift is the noisy mean itself.
        """
        program = self.program
        if isinstance(program, LocalSteps):
            program = replace(program, steps=1, lr=1.0)
        rng = stream(self.config.seed, Purpose.AUDIT, 0)
        theta = np.zeros((CLASSES, width + 1), np.float32)
        pair = antipodal(self.plan.clip, rng, width, size)
        clients = [Client(i, D) for i, D in enumerate([pair.D] * trials + [pair.other] * trials)]
        received = broadcast(self.config.strategy, start(self.config.strategy, theta))
        state = program.init(theta, len(clients))
        released, _ = program.release(received, clients, state, self.plan, self.noise_of(0))
        std = self.plan.clip * self.plan.client_noise_multiplier
        agree = [
            reachable(released, clipped_gradient_sum(theta, data, self.plan.clip), std, size)
            for data in pair
        ]
        count = (agree[0].astype(float) - agree[1]).sum(axis=(1, 2))[:, None]
        return Samples(count[:trials], count[trials:], np.zeros((1, 1)))

    def _first_half(self, trials: int) -> Array:
        half = np.arange(trials // 2)
        return np.concatenate([half, trials + half])

    def _theta(self) -> Array:
        return np.zeros((CLASSES, FEATURES + 1), np.float32)

    def _gradient(self, data: Examples, clip: float) -> Array:
        factors = self.factors()
        data = data if factors is None else data.with_transform(factors)
        return clipped_gradient_sum(self._theta(), data, clip)

    def clients(self, pair: Pair, trials: int) -> list[Client]:
        """A client for every trial, those with D first; sharers of its noise follow each."""
        n = self.plan.sharers
        nothing = pair.D._replace(x=np.zeros_like(pair.D.x))
        data = [pair.D] * trials + [pair.other] * trials
        return [
            Client(n * i + j, nothing if j else D) for i, D in enumerate(data) for j in range(n)
        ]

    def together(self, seen: Array) -> Array:
        """What the adversary sees of those who share their noise: the sum."""
        return np.asarray(seen.reshape(-1, self.plan.sharers, *seen.shape[1:]).sum(axis=1))
