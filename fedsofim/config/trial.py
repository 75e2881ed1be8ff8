"""Tries a client program of the user's own on made-up records that watch what it does.

What a program discloses is what its author says. Much of that can be tried before any real record
is touched: the made-up records count the sums that each of them takes part in, and refuse to be
read in any other way. This finds mistakes. It proves nothing: a program may act differently later.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedsofim.clients import Client, Program
from fedsofim.core.arrays import Array, Scale
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.sums import BoundedSum
from fedsofim.models import head
from fedsofim.models.records import Records
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.mechanism import SeededNoise, seeded
from fedsofim.privacy.plan import Plan
from fedsofim.strategies import Rule
from fedsofim.strategies.rule import broadcast, start

CLIENTS, RECORDS, ROUNDS = 2, 6, 3
# The only questions that records answer to a program that releases.
SUMS = ("gradient_sum",)


class _Watched:
    """Records that count how often each of them takes part in a sum.

    Args:
        records: the records.
        clip: what a sum may be clipped at.
        taken: how many sums each record took part in, of which these records are some.
    """

    def __init__(self, records: Records, clip: float, taken: Array) -> None:
        self.records, self.clip, self.taken = records, clip, taken

    @property
    def size(self) -> int:
        return self.records.size

    def part(self, which: slice) -> "_Watched":
        return _Watched(self.records.part(which), self.clip, self.taken[which])

    def unit(self, clip: Scale) -> float:
        return self.records.unit(clip)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        require(name in SUMS, f"reads records by {name}, and not as a clipped sum")
        return partial(self._sum, name)

    def _sum(self, name: str, theta: Array, clip: float, *rest: Any, **more: Any) -> Any:
        require(clip <= self.clip, f"clips at {clip}, where the plan says {self.clip}")
        self.taken += 1  # a view: the count of the very records that take part
        return getattr(self.records, name)(theta, clip, *rest, **more)


class _Heard(NamedTuple):
    """A source of noise that counts what is drawn from it, and asks for what the plan says."""

    source: SeededNoise
    least: float
    draws: list[int]
    client: int

    @property
    def exact(self) -> bool:
        return self.source.exact

    def gaussian(self, total: BoundedSum, noise_multiplier: Scale) -> Array:
        z = float(np.min(noise_multiplier))
        least = self.least
        require(z >= least, f"adds noise of {z:g} times the clip, the plan says {least:g}")
        self.draws.append(self.client)
        return self.source.gaussian(total, noise_multiplier)


def try_out(program: Program, rule: Rule, plan: Plan, disclosure: Disclosure, rounds: int) -> None:
    """Refuse a program that, in a few rounds, does something other than it discloses.

    Where clients share their noise it is tried by what it adds to a sum.
    """
    told = f"client={type(program).__name__}"
    try:
        _try_out(program, rule, plan, disclosure, min(rounds, ROUNDS))
        if type(program).train_own is not Program.train_own:
            _try_own(program, rule, plan)
    except ConfigError as error:
        raise ConfigError(f"{told}: {error}") from None
    except Exception as error:  # a program of the user's can fail in any way
        kind = type(error).__name__
        raise ConfigError(f"{told}: fails when it is tried ({kind}: {error})") from None


def _try_out(program: Program, rule: Rule, plan: Plan, disclosure: Disclosure, rounds: int) -> None:
    taken = np.zeros((CLIENTS, RECORDS), int)
    records: Any = [_made_up()] * CLIENTS
    if disclosure.sends:  # else the program may read what it likes: nothing leaves
        records = [_Watched(some, plan.clip, row) for some, row in zip(records, taken, strict=True)]
    clients = [Client(i, some) for i, some in enumerate(records)]
    theta = np.zeros((2, 3), np.float32)
    received, memory = broadcast(rule, start(rule, theta)), program.init(theta, CLIENTS)
    for t in range(rounds):
        drawn: list[tuple[int, int]] = []
        draws: list[int] = []

        def noise(
            client: int, draw: int, t: int = t, drawn: Any = drawn, draws: Any = draws
        ) -> _Heard:
            drawn.append((client, draw))
            source = seeded(0, t)(client, draw)
            return _Heard(source, plan.client_noise_multiplier, draws, client)

        before = int(taken.max())
        act = program.release if plan.sharers == 1 else program.contribute
        sent, memory = act(received, clients, memory, plan, noise)
        _check(sent, rule.release_shape(theta))
        took, stated = int(taken.max()), disclosure.releases(t + 1)
        require(
            took <= stated,
            f"a record takes part in {took} sums in {t + 1} rounds, and the disclosure states "
            f"{stated:g} releases",
        )
        again = next((d for d in drawn if drawn.count(d) > 1), None)
        require(again is None, "draws the same noise twice in a round; number the draws")
        noises = min(draws.count(client.id) for client in clients)
        require(
            noises >= took - before,
            f"takes {took - before} sums in a round, and draws noise {noises} times",
        )


def _try_own(program: Program, rule: Rule, plan: Plan) -> None:
    """Refuse a program that sends what it did for itself, without clip or noise."""
    clients, theta = [Client(i, _made_up()) for i in range(CLIENTS)], np.zeros((2, 3), np.float32)
    received, trained = broadcast(rule, start(rule, theta)), program.init(theta, CLIENTS)
    untrained, act = trained, program.release if plan.sharers == 1 else program.contribute
    for t in range(ROUNDS):
        sent, trained = act(received, clients, trained, plan, seeded(0, t))
        same, untrained = act(received, clients, untrained, plan, seeded(0, t))
        require(
            np.array_equal(sent, same),
            "what it sends depends on train_own, which reads records without clip or noise",
        )
        trained = program.train_own(received, clients, trained)


def _made_up() -> head.Examples:
    x = np.random.default_rng(0).normal(size=(RECORDS, 2)).astype(np.float32)
    return head.examples(x, np.arange(RECORDS) % 2, 2)


def _check(sent: Array, shape: tuple[int, ...]) -> None:
    got, right = np.shape(sent), (CLIENTS, *shape)
    require(got == right, f"sends an array of shape {got}; for {CLIENTS} clients it is {right}")
    require(bool(np.isfinite(sent).all()), "sends numbers that are not finite")
