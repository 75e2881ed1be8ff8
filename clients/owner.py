"""A client that owns its records: it answers for them, whatever the server asks.

It charges every release to its own ledger before the release exists, draws the noise from the
operating system, and keeps on its own disk what must last: the ledger, what its program remembers,
and the last release of each run. Asked for that one again, in the same words, it sends the very
same numbers, which costs nothing; asked in any other words, it charges again or refuses.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clients.program import Client, Program
from fedsofim.config import ConfigError, require
from fedsofim.linalg import Array
from fedsofim.privacy.accounting import GaussianEvent
from fedsofim.privacy.entropy import SystemNoise
from fedsofim.privacy.ledger import Charge, Ledger, RefusedError
from fedsofim.privacy.mechanism import Adjacency, NormalSource, sensitivity
from fedsofim.privacy.plan import Plan
from fedsofim.tree import flatten, unflatten


class Request(NamedTuple):
    """What a server asks for: the run, the round (from 0), and the terms in full."""

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
    """The last release of a run, and what the program remembers before and after it."""

    digest: str
    t: int
    release: Array
    before: dict[str, Array]
    after: dict[str, Array]


def event_of(plan: Plan, count: float, adjacency: Adjacency) -> GaussianEvent:
    """What `count` releases do to a record, by the noise that this client alone adds.

    The plan may lean on other clients' noise or on a weaker notion of neighbours; an owner that
    trusts neither counts its own.
    """
    z = plan.client_noise_multiplier
    return GaussianEvent(sensitivity(plan.clip, adjacency), plan.clip * z if z else 0.0, count)


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

    def release(
        self, program: Program, plan: Plan, received: Mapping[str, Array], request: Request
    ) -> tuple[Array, float]:
        """What the server is sent, and all that this run has been charged for so far.

        Raises:
            RefusedError: if the ledger does not cover it.
        """
        self._check(received)
        digest = request.digest(received)
        with self.ledger.locked():
            saved = self._saved(request.run)
            if saved is not None and saved.digest == digest:
                return saved.release, charged(self.ledger, request.run)
            self._charge(program, plan, request)
            before = self._memory(program, received["theta"], saved, request.t)
            releases, after = program.release(
                received, [self.client], before, plan, lambda client, draw: self.noise
            )
            self._save(
                request.run,
                _Saved(digest, request.t, releases[0], flatten(before), flatten(after)),
            )
            return releases[0], charged(self.ledger, request.run)

    def _check(self, received: Mapping[str, Array]) -> None:
        theta = received.get("theta")
        rows, width = self.client.data.target.shape[0], self.client.data.x.shape[0]
        fits = theta is not None and theta.shape == (rows, width) and theta.dtype == np.float32
        if not fits:
            raise ConfigError(
                f"the model should be a float32 array of shape {(rows, width)} for "
                f"{width - 1} features; it is {None if theta is None else theta.shape}"
            )

    def _charge(self, program: Program, plan: Plan, request: Request) -> None:
        count = program.cost(request.t + 1) - program.cost(request.t)
        event = event_of(plan, count, self.ledger.budget.adjacency)
        self.ledger.charge(
            Charge(
                run=request.run,
                round=request.t,
                sensitivity=event.sensitivity,
                std=event.std,
                count=count,
            )
        )

    def _memory(self, program: Program, theta: Array, saved: _Saved | None, t: int) -> Any:
        """What the program remembers at the beginning of round `t`."""
        blank = program.init(theta, 1)
        if saved is None:
            return blank
        return unflatten(blank, saved.before if t == saved.t else saved.after)

    def _file(self, run: str) -> Path:
        # The name comes from the server, and must not lead out of the directory.
        require(re.fullmatch("[0-9a-f]{1,64}", run) is not None, "run: not a name of a run")
        return self.directory / f"run-{run}.npz"

    def _saved(self, run: str) -> _Saved | None:
        file = self._file(run)
        if not file.exists():
            return None
        try:
            with np.load(file, allow_pickle=False) as arrays:
                flat = dict(arrays)
        except (OSError, ValueError, EOFError) as error:
            raise RefusedError(f"{file}: damaged ({error})") from None
        before = {k[7:]: v for k, v in flat.items() if k.startswith("before.")}
        after = {k[6:]: v for k, v in flat.items() if k.startswith("after.")}
        return _Saved(str(flat["digest"]), int(flat["t"]), flat["release"], before, after)

    def _save(self, run: str, saved: _Saved) -> None:
        buffer, file = BytesIO(), self._file(run)
        flat: dict[str, Any] = {"digest": saved.digest, "t": saved.t, "release": saved.release}
        flat |= {f"before.{k}": v for k, v in saved.before.items()}
        flat |= {f"after.{k}": v for k, v in saved.after.items()}
        np.savez(buffer, **flat)
        draft = file.with_suffix(".tmp")
        draft.write_bytes(buffer.getvalue())
        os.replace(draft, file)


def charged(ledger: Ledger, run: str) -> float:
    """What a run has been charged for, in releases of a clipped sum."""
    return float(sum(charge.count for charge in ledger.charges() if charge.run == run))
