"""A client that owns its records: it answers for them, whatever the server asks.

It charges every release to its own ledger before the release exists, draws the noise from the
operating system, and keeps on its own disk what must last: the ledger, what its program remembers,
and the last release of each run. Asked for that one again, in the same words, it sends the very
same numbers, which costs nothing; asked in any other words, it charges again or refuses. What a
release costs depends on how many it has made itself, never on the round the server speaks of.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clients.program import Client, Program, transformed
from fedsofim.config import ConfigError, require
from fedsofim.files import write_whole
from fedsofim.head import examples_of
from fedsofim.linalg import Array
from fedsofim.privacy.accounting import GaussianEvent
from fedsofim.privacy.entropy import SystemNoise
from fedsofim.privacy.ledger import Charge, Ledger, RefusedError
from fedsofim.privacy.mechanism import Adjacency, NormalSource, sensitivity
from fedsofim.privacy.plan import Plan
from fedsofim.protocol import SETUP
from fedsofim.tree import flatten, unflatten

# A clipped sum is transformed as a whole, so a transform also scales the rounding errors of the
# sum, which are 1e-7 of it: this leaves them below a thousandth of the clip.
MAX_SPREAD = 1e4


class Request(NamedTuple):
    """What a server asks for: the run, the round (from 0, or `SETUP`), and the terms in full."""

    run: str
    t: int
    asked: str

    def digest(self, received: Mapping[str, Array]) -> str:
        """A name for this very question; another model or other terms make another name."""
        text = hashlib.sha256(repr((self.run, self.t, self.asked)).encode())
        for name, array in sorted(received.items()):
            text.update(repr((name, array.dtype.str, array.shape)).encode())
            text.update(np.ascontiguousarray(array).tobytes())
        return text.hexdigest()


class _Saved(NamedTuple):
    """The last release of a run, and what the program remembers after it."""

    digest: str
    release: Array
    memory: dict[str, Array]


def event_of(plan: Plan, count: float, adjacency: Adjacency) -> GaussianEvent:
    """What `count` releases do to a record, by the noise that this client alone adds.

    The plan may lean on other clients' noise or on a weaker notion of neighbours; an owner that
    trusts neither counts its own.
    """
    z = plan.client_noise_multiplier
    return GaussianEvent(sensitivity(plan.clip, adjacency), plan.clip * z if z else 0.0, count)


def setup_event(plan: Plan, adjacency: Adjacency) -> GaussianEvent | None:
    """What the release before the first round does to a record, if there is one."""
    if not plan.setup_share:
        return None
    setup = plan.events(0)[0]
    # Replacing a record is removing one and adding one.
    twice = adjacency == "replace-one" and plan.adjacency == "add-remove"
    factor = math.sqrt(plan.sharers) * (2 if twice else 1)
    return GaussianEvent(setup.sensitivity * factor, setup.std)


class Account(NamedTuple):
    """What one run has been charged for: releases in rounds, and whether the set-up was."""

    made: int
    charged: float
    set_up: bool


def account(ledger: Ledger, run: str) -> Account:
    """What the ledger says about a run."""
    mine = [charge for charge in ledger.charges() if charge.run == run]
    rounds = [charge.count for charge in mine if charge.round != SETUP]
    return Account(len(rounds), float(sum(rounds)), len(rounds) < len(mine))


def check_ahead(ledger: Ledger, program: Program, plan: Plan, *, run: str, rounds: int) -> None:
    """Refuse a run that the budget does not cover to its end: better now than in the middle."""
    made, _, set_up = account(ledger, run)
    left = max(0.0, program.cost(rounds) - program.cost(min(made, rounds)))
    events = [event_of(plan, left, ledger.budget.adjacency)]
    setup = setup_event(plan, ledger.budget.adjacency)
    ledger.check(events if setup is None or set_up else [setup, *events])


class Owner:
    """The owner of some records.

    Args:
        client: its number and its records.
        directory: where it keeps what must last.
        ledger: its account.
        noise: where noise comes from.
    """

    def __init__(
        self,
        client: Client,
        directory: Path,
        ledger: Ledger,
        noise: NormalSource | None = None,
    ) -> None:
        self.client, self.directory, self.ledger = client, directory, ledger
        self.noise = noise or SystemNoise()

    def setup(self, program: Program, plan: Plan, request: Request) -> tuple[Array, float]:
        """What the server is sent once, before the first round; see `release`."""
        event = setup_event(plan, self.ledger.budget.adjacency)
        with self.ledger.locked():
            made = account(self.ledger, request.run)
            digest, file = request.digest({}), self._file(request.run, "-setup")
            saved = self._saved(file)
            if saved is not None and saved.digest == digest:
                return saved.release, made.charged
            require(event is not None, "this client releases nothing before the first round")
            assert event is not None
            self._charge(request.run, SETUP, event)
            released = program.setup([self.client], plan, self._noise)
            assert released is not None
            self._save(file, _Saved(digest, released[0], {}))
            return released[0], made.charged

    def release(
        self, program: Program, plan: Plan, received: Mapping[str, Array], request: Request
    ) -> tuple[Array, float]:
        """What the server is sent in a round, and all that the run has been charged for so far.

        Raises:
            RefusedError: if the ledger does not cover it.
        """
        self._check(received)
        with self.ledger.locked():
            made, charged, _ = account(self.ledger, request.run)
            digest, file = request.digest(received), self._file(request.run)
            saved = self._saved(file)
            if saved is not None and saved.digest == digest:
                return saved.release, charged
            before = self._memory(program, received["theta"], saved, made)
            count = program.cost(made + 1) - program.cost(made)
            self._charge(
                request.run, request.t, event_of(plan, count, self.ledger.budget.adjacency)
            )
            releases, after = program.release(
                received, transformed([self.client], received), before, plan, self._noise
            )
            self._save(file, _Saved(digest, releases[0], flatten(after)))
            return releases[0], charged + count

    def _noise(self, client: int, draw: int) -> NormalSource:
        return self.noise

    def _check(self, received: Mapping[str, Array]) -> None:
        theta = received.get("theta")
        data = examples_of(self.client.data)
        rows, width = data.target.shape[0], data.x.shape[0]
        fits = theta is not None and theta.shape == (rows, width) and theta.dtype == np.float32
        if not fits:
            raise ConfigError(
                f"the model should be a float32 array of shape {(rows, width)} for "
                f"{width - 1} features; it is {None if theta is None else theta.shape}"
            )

        if "U_G" in received or "U_A" in received:
            _check_factor(received.get("U_G"), rows)
            _check_factor(received.get("U_A"), width)
            spread = float(np.linalg.cond(received["U_G"]) * np.linalg.cond(received["U_A"]))
            require(spread <= MAX_SPREAD, "the transform would magnify rounding beyond the clip")

    def _charge(self, run: str, t: int, event: GaussianEvent) -> None:
        self.ledger.charge(
            Charge(
                run=run,
                round=t,
                sensitivity=event.sensitivity,
                std=event.std,
                count=event.count,
            )
        )

    def _memory(self, program: Program, theta: Array, saved: _Saved | None, made: int) -> Any:
        """What the program remembers after the releases it has made."""
        blank = program.init(theta, 1)
        if saved is not None:
            return unflatten(blank, saved.memory)
        if made and flatten(blank):
            raise RefusedError("what this client remembers of the run is lost")
        return blank

    def _file(self, run: str, suffix: str = "") -> Path:
        # The name comes from the server, and must not lead out of the directory.
        require(re.fullmatch("[0-9a-f]{1,64}", run) is not None, "run: not a name of a run")
        return self.directory / f"run-{run}{suffix}.npz"

    def _saved(self, file: Path) -> _Saved | None:
        if not file.exists():
            return None
        try:
            with np.load(file, allow_pickle=False) as arrays:
                flat = dict(arrays)
            memory = {k[7:]: v for k, v in flat.items() if k.startswith("memory.")}
            return _Saved(str(flat["digest"]), flat["release"], memory)
        except Exception as error:  # a damaged archive can fail in any of its parts
            raise RefusedError(f"{file}: damaged ({error})") from None

    def _save(self, file: Path, saved: _Saved) -> None:
        buffer = BytesIO()
        flat: dict[str, Any] = {"digest": saved.digest, "release": saved.release}
        flat |= {f"memory.{name}": rows for name, rows in saved.memory.items()}
        np.savez(buffer, **flat)
        write_whole(file, buffer.getvalue())


def _check_factor(U: Array | None, size: int) -> None:
    good = U is not None and U.shape == (size, size) and U.dtype == np.float32
    require(
        good and bool(np.isfinite(np.asarray(U)).all()),
        f"the transform's factor should be a finite float32 array of shape {(size, size)}",
    )
