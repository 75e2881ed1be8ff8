"""A client that owns its records: it answers for them, whatever the server asks.

It charges every release to its own ledger before the release exists, draws the noise from the
operating system, and keeps on its own disk what must last: the ledger, what its program remembers,
and the last release of each run. Asked for that one again, in the same words, it sends the very
same numbers, which costs nothing; asked in any other words, it charges again or refuses. What a
release costs depends on how many it has made itself, never on the round the server speaks of.

A run keeps the terms of its first charge. A later release may cost nothing because an earlier
charge covers it, and a tree's noise hides nothing under another clip: other terms would break both.
What the server sends is checked before it is used, and what leaves is one head or nothing. Of a
fault that records may have caused, the server learns that there was one, and no more.
"""

import errno
import logging
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsofim.clients.group import Client, transformed
from fedsofim.clients.program import Program, release_stage
from fedsofim.core.arrays import Array, flatten, unflatten
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import remove_drafts, write_whole
from fedsofim.data import npz
from fedsofim.federation.terms import Request, Terms
from fedsofim.models.head import examples_of
from fedsofim.privacy.account import agreed, next_event, stage_event
from fedsofim.privacy.accounting import GaussianEvent
from fedsofim.privacy.exact import ExactNoise
from fedsofim.privacy.ledger import Charge, Ledger
from fedsofim.privacy.mechanism import NoiseSource
from fedsofim.privacy.refusals import Refusal, RefusedError

# What a program may be sent beyond its needs: a proximal pull, a map, and a transform's factors.
OPTIONAL = frozenset({"mu", "P", "U_G", "U_A"})
# All that a server hears of a fault that may say something about records.
NO_REASON = "it could not answer; its owner's log says why"
# Bytes that must be free before a charge: a release that can't be kept is lost, and paid for.
ROOM = 8 << 20


class _Saved(NamedTuple):
    """The last release of a run, how many were made up to it, and what is remembered after it."""

    digest: str
    release: Array
    made: int
    memory: dict[str, Array]


def hidden(error: Exception) -> ConfigError:
    """What to tell the server instead of this error, which goes to the owner's own log."""
    unforeseen = not isinstance(error, ConfigError | OSError)  # which say all in one line
    logging.getLogger(__name__).error("Not told to the server: %s", error, exc_info=unforeseen)
    return ConfigError(NO_REASON)


@contextmanager
def hiding_errors() -> Iterator[None]:
    """What goes wrong inside is told to the owner alone."""
    try:
        yield
    except Exception as error:
        raise hidden(error) from None


def clean(directory: Path, ledger: Ledger) -> None:
    """Remove what processes that were killed left half-written, unless one is at work on it."""
    for draft in directory.glob(".run-*"):
        with suppress(RefusedError), ledger.working(_run(draft), seconds=0):
            draft.unlink(missing_ok=True)


def _run(file: Path) -> str:
    """The run that a file is of, by its name."""
    return re.split("[-.]", file.name.lstrip("."))[1]


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
        noise: NoiseSource | None = None,
    ) -> None:
        self.client, self.directory, self.ledger = client, directory, ledger
        self.noise = noise or ExactNoise()

    def stage(
        self, terms: Terms, received: Mapping[str, Array], request: Request
    ) -> tuple[Array, float]:
        """What the server is sent before the first round; see `release`."""
        program, plan, stages, _ = terms
        self._check_alone(terms)
        t, S = request.t, len(stages)
        require(-S <= t < 0 and len(plan.shares) == S, f"round {t}: there is none")
        stage, digest = stages[t], request.digest(received)
        self._check(stage.reads & received.keys(), stage.reads, received)
        event, file = stage_event(plan, t, self.ledger.budget.adjacency), f"-setup{-t}"
        with self.ledger.working(request.run):
            with self.ledger.locked():
                known = agreed(self.ledger, program, plan, request.run, stages)
                place = self._file(request.run, file)
                saved = self._saved(place) if t in known.stages else None
                if saved is not None and saved.digest == digest:
                    return saved.release, known.charged
                self._charge(request, terms.digest, event)
            with hiding_errors():
                mine = [self.client]
                (released,) = release_stage(stage, t, mine, received, plan, self._noise)
            self._save(place, _Saved(digest, released, 0, {}))
            return released, known.charged

    def release(
        self, terms: Terms, received: Mapping[str, Array], request: Request
    ) -> tuple[Array, float]:
        """What the server is sent in a round, and all that the run has been charged for so far.

        The charge is on disk before the work begins, and the work does not keep the ledger from
        others. Whoever asks for the same run meanwhile waits, and gets what was computed.

        Raises:
            RefusedError: if the ledger does not cover it, or the run began on other terms.
        """
        program, plan, stages, _ = terms
        self._check_alone(terms)
        self._check(program.needs, program.needs | OPTIONAL, received)
        digest, file = request.digest(received), self._file(request.run)
        with self.ledger.working(request.run):
            with self.ledger.locked():
                known = agreed(self.ledger, program, plan, request.run, stages)
                saved = self._saved(file) if known.terms else None
                if saved is not None and saved.digest == digest:
                    return saved.release, known.charged
                before = self._memory(program, received["theta"], saved, known.made)
                event = next_event(program, plan, known.made, self.ledger.budget.adjacency)
                self._charge(request, terms.digest, event)
            with hiding_errors():
                mine = transformed([self.client], received)
                (release,), after = program.release(received, mine, before, plan, self._noise)
                after = program.train_own(received, mine, after)
            self._check_release(release, received["theta"], event)
            self._save(file, _Saved(digest, release, known.made + 1, flatten(after)))
            return release, known.charged + event.count

    def _check_alone(self, terms: Terms) -> None:
        """Send by itself only what was planned to be seen by itself."""
        if terms.sharing is not None or terms.plan.sharers != 1:
            raise RefusedError(
                "this run's clients share their noise: what one adds is never sent by itself",
                Refusal.UNPROTECTED,
            )

    def _noise(self, client: int, draw: int) -> NoiseSource:
        return self.noise

    def _check(
        self, needs: frozenset[str], takes: frozenset[str], received: Mapping[str, Array]
    ) -> None:
        """Take only what is read, in the shapes of one head.

        A stack of heads would share its noise, and the difference of two of them would show what
        is under it.
        """
        data = examples_of(self.client.data)
        K, width = data.target.shape[0], data.x.shape[0]
        shapes = {"theta": [(K, width)], "U_G": [(K, K)]}
        shapes |= {"U_A": [(width, width)], "P": [(width, width)]}
        factors = {"U_G", "U_A"} if received.keys() & {"U_G", "U_A"} else set()
        for name in sorted(received.keys() | needs | factors):
            require(name in takes, f"{name}: this client does not take it")
            array, right = received.get(name), shapes.get(name, [(), (K, width)])
            good = array is not None and array.shape in right and array.dtype == np.float32
            require(
                good and bool(np.isfinite(np.asarray(array)).all()),
                f"{name}: should be finite numbers in a float32 array of shape "
                f"{' or '.join(map(str, right))}, for {K} classes and {width - 1} features",
            )

    def _check_release(self, release: Array, theta: Array, event: GaussianEvent) -> None:
        """Send one head, which is hidden or paid for; or nothing at all."""
        bare = event.std == 0 and event.count == 0 and math.isfinite(self.ledger.budget.epsilon)
        if release.size and (bare or release.shape != theta.shape):
            raise RefusedError(
                "what this would send is not one release that was charged", Refusal.UNPROTECTED
            )

    def _charge(self, request: Request, terms: str, event: GaussianEvent) -> None:
        """Charge, and forget the files of runs that the account has forgotten.

        A session may be older than its run's first charge, and is forgotten elsewhere.
        """
        if shutil.disk_usage(self.directory).free < ROOM:
            raise OSError(errno.ENOSPC, "less than 8 MB are left", str(self.directory))
        balance = self.ledger.charge(
            Charge(
                run=request.run,
                round=request.t,
                terms=terms,
                adjacency=self.ledger.budget.adjacency,
                sensitivity=event.sensitivity,
                std=event.std,
                count=event.count,
            )
        )
        for file in self.directory.glob("run-*.npz"):
            if _run(file) not in balance.runs:
                file.unlink(missing_ok=True)

    def _memory(self, program: Program, theta: Array, saved: _Saved | None, made: int) -> Any:
        """What the program remembers after the releases that the ledger says it made."""
        blank, kept = program.init(theta, 1), 0 if saved is None else saved.made
        if kept > made:
            raise RefusedError("the ledger lacks charges for releases that were made", Refusal.LOST)
        if kept < made and flatten(blank):
            raise RefusedError("what this client remembers of the run is lost", Refusal.LOST)
        return blank if saved is None else unflatten(blank, saved.memory)

    def _file(self, run: str, suffix: str = "", kind: str = ".npz") -> Path:
        # The name comes from the server, and must not lead out of the directory.
        require(re.fullmatch("[0-9a-f]{1,64}", run) is not None, "run: not a name of a run")
        return self.directory / f"run-{run}{suffix}{kind}"

    def _saved(self, file: Path) -> _Saved | None:
        if not file.exists():
            return None
        try:
            flat = npz.read(file)
            memory = {k[7:]: v for k, v in flat.items() if k.startswith("memory.")}
            return _Saved(str(flat["digest"]), flat["release"], int(flat["made"]), memory)
        except Exception as error:  # a damaged archive can fail in any of its parts
            why = str(error).removeprefix(f"{file}: ")
            raise RefusedError(f"{file}: is damaged ({why})", Refusal.LOST) from None

    def _save(self, file: Path, saved: _Saved) -> None:
        buffer = BytesIO()
        flat: dict[str, Any] = {k: v for k, v in saved._asdict().items() if k != "memory"}
        flat |= {f"memory.{name}": rows for name, rows in saved.memory.items()}
        np.savez(buffer, **flat)
        remove_drafts(self.directory, file.name)  # nobody else is at work on this run
        write_whole(file, buffer.getvalue())
