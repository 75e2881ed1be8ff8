"""An owner that adds to sums of which only the total is seen.

What it adds is charged before it exists, by the noise of the honest clients that its own policy
assumes, and leaves masked. Each sum is a session with a name that the server draws: the same
question gets the same answer, another question in an answered stage is refused, and another session
is another release, with noise and a charge of its own. So two sums never differ by one client under
the same noise. What the protocol must remember is on disk before an answer leaves, and a note that
it left is kept elsewhere: files that were put back to an earlier state answer nothing twice.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsofim.clients.group import Client, transformed
from fedsofim.clients.program import Program
from fedsofim.clients.together import stage_sums
from fedsofim.core.arrays import Array, flatten
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import write_whole
from fedsofim.federation.answered import Answered
from fedsofim.federation.node import KEY
from fedsofim.federation.owner import OPTIONAL, Owner, _Saved, hiding_errors
from fedsofim.federation.peers import Peers
from fedsofim.federation.sessions import Question, session_of
from fedsofim.federation.terms import Request, Terms
from fedsofim.models.head import examples_of
from fedsofim.privacy.account import agreed, next_event, stage_event
from fedsofim.privacy.accounting import GaussianEvent
from fedsofim.privacy.ledger import Ledger
from fedsofim.privacy.refusals import Refusal, RefusedError
from fedsofim.secagg.client import answer
from fedsofim.secagg.errors import DistrustError
from fedsofim.secagg.graph import Neighbours
from fedsofim.secagg.primitives import load_key
from fedsofim.secagg.session import Policy, Session, check
from fedsofim.secagg.stages import Stage, stage_of
from fedsofim.secagg.state import Member, answered, pinned

# Sessions of a run that are kept, and of all runs together: one at work, and one made ready.
KEPT, KEPT_IN_ALL = 4, 64
SUMS = "run-*.sum"


class SumOwner(Owner):
    """The owner of some records, who trusts the clients whose keys it has pinned, and so many.

    Args:
        client: its number and its records.
        directory: where it keeps what must last, its key among it.
        ledger: its account, and its policy.
        peers: all clients' public keys.
    """

    def __init__(self, client: Client, directory: Path, ledger: Ledger, peers: Peers) -> None:
        super().__init__(client, directory, ledger)
        self.peers = peers
        self.answered = Answered(ledger.head.safe.with_suffix(".answered"))

    def terms(self, terms: Terms) -> Terms:
        """The terms of a run as this owner understands them: with its own peers."""
        program = terms.program
        adds = program.contributes and program.disclosure.shares_noise
        require(adds, f"{type(program).__name__}: adds to no sum")  # before anything is charged
        require(terms.sharing is not None, "privacy.trust: nothing is added up in this run")
        assert terms.sharing is not None
        return terms._replace(sharing=replace(terms.sharing, roster=self.peers.digest))

    def honest(self, terms: Terms) -> int:
        """How many clients' noise counts, this one's among them.

        If its policy takes more clients for the server's than the run does, those could sign two
        lists of survivors: then nobody's noise counts but its own. Where nobody may vanish there is
        no list, but neighbours must bear so many, too.
        """
        s, others = terms.sharing, len(self.peers.keys) - 1
        assert s is not None
        dishonest = others - min(self.ledger.policy.honest, others)
        if s.recover and dishonest > s.colluders:
            return 1
        if s.window:
            try:
                check(s.clients, s.threshold, dishonest, Neighbours(s.window, s.quorum), s.recover)
            except ConfigError:
                return 1
        return s.honest(others - dishonest, others + 1)

    def answer(
        self, terms: Terms, request: Request, question: Question, received: Mapping[str, Array]
    ) -> bytes:
        """What the protocol answers.

        Args:
            terms: of the run.
            request: the run, the round and the terms in the server's words.
            question: of one session.
            received: what the server broadcast, in the stage that adds to the sum.

        Raises:
            RefusedError: if the ledger does not cover it, or the run began on other terms.
            ConfigError: if the protocol does not allow it.
        """
        terms = self.terms(terms)
        session = session_of(terms, request, question.name, self._length(terms, request.t))
        place = self._file(request.run, f"-{question.name}-{self.answered.name}", ".sum")
        with self.ledger.working(request.run):
            self.charged(terms, request)
            state = place.read_bytes() if place.exists() else b""
            try:
                stage = stage_of(question.words)
                self._check_memory(question.name, stage, state)
                state, reply = answer(
                    state,
                    question.words,
                    self._member(session),
                    lambda: self._added(terms, request, received),
                )
            except DistrustError as error:
                raise ConfigError(f"secure aggregation: {error.reason}") from error
            self._keep(place, state)
            self.answered.note(question.name, stage.name)
            self._forget(request.run)
            return reply

    def _check_memory(self, session: str, stage: Stage, state: bytes) -> None:
        """Refuse if an answer has left that the state knows nothing of."""
        if self.answered.knows(session, stage.name) and stage not in answered(state):
            raise RefusedError(
                f"stage {stage.name} of a sum was answered, and what is kept of it is older: these "
                "files were put back",
                Refusal.LOST,
            )

    def charged(self, terms: Terms, request: Request) -> float:
        """All that the run was charged for so far, if it began on these terms."""
        program, plan, stages, sharing = self.terms(terms)
        with self.ledger.locked():
            return agreed(self.ledger, program, plan, request.run, stages, sharing).charged

    def _length(self, terms: Terms, t: int) -> int:
        """How many numbers are added up in round `t`, or in a stage."""
        data = examples_of(self.client.data)
        classes, width = data.target.shape[0], data.x.shape[0]
        return terms.stages[t].length(width - 1, classes) if t < 0 else classes * width

    def _member(self, session: Session) -> Member:
        with hiding_errors():
            key = load_key((self.directory / KEY).read_bytes())
            peers = pinned({i: text.encode() for i, text in self.peers.keys.items()})
        policy = Policy(session.threshold, session.colluders)
        return Member(self.client.id, key, peers, policy, session)

    def _added(self, terms: Terms, request: Request, received: Mapping[str, Array]) -> Array:
        """This client's noisy sum in integers; charged on disk before it is computed."""
        program, plan, stages, _ = terms
        t, honest, adjacency = request.t, self.honest(terms), self.ledger.budget.adjacency
        if t < 0:
            stage = stages[t]
            self._check(stage.reads & received.keys(), stage.reads, received)
            with self.ledger.locked():
                event = stage_event(plan, t, adjacency, honest)
                self._charge(request, terms.digest, event)
            with hiding_errors():
                (added,) = stage_sums(stage, t, [self.client], received, plan, self._noise)
            return np.asarray(added)
        self._check(program.needs, program.needs | OPTIONAL, received)
        file = self._file(request.run)
        with self.ledger.locked():
            known = agreed(self.ledger, program, plan, request.run, stages, terms.sharing)
            self._check_leaf(program, t, known.made)
            saved = self._saved(file) if known.terms else None
            before = self._memory(program, received["theta"], saved, known.made)
            event = next_event(program, plan, known.made, adjacency, honest)
            self._charge(request, terms.digest, event)
        with hiding_errors():
            mine = transformed([self.client], received)
            (added,), after = program.contribute(received, mine, before, plan, self._noise)
            after = program.train_own(received, mine, after)
        self._check_added(added, received["theta"], event)
        nothing = np.zeros(0, np.int64)  # what was added is not kept: the masked numbers are
        self._save(file, _Saved("", nothing, known.made + 1, flatten(after)))
        return np.ravel(added)

    def _check_leaf(self, program: Program, t: int, made: int) -> None:
        """Add to a tree at the leaf that all others are at.

        What a leaf costs is counted for noise that cancels for all in the same rounds. Those whose
        trees are a leaf ahead cancel theirs in others, and hide less. Who vanishes hides no less.
        """
        if program.every_round and t != made:
            raise RefusedError(
                f"round {t}: this client has made {made} releases, and its noise is for the next",
                Refusal.LOST,
            )

    def _check_added(self, added: Array, theta: Array, event: GaussianEvent) -> None:
        """Add integers in the shape of one head, which are hidden or paid for; or nothing."""
        self._check_release(added, theta, event)
        if added.dtype != np.int64:
            raise RefusedError("what this would add is not whole numbers", Refusal.UNPROTECTED)

    def _keep(self, place: Path, state: bytes) -> None:
        """Write down a session; it is the last one, also by a clock that was put back."""
        write_whole(place, state)
        newest = max(
            (_written(file) for file in self.directory.glob(SUMS) if file != place), default=0
        )
        if _written(place) <= newest:
            os.utime(place, ns=(newest + 1, newest + 1))

    def _forget(self, run: str) -> None:
        """Keep the last sessions alone: a server can open many, and pays for none of them."""
        for pattern, kept in ((f"run-{run}-*.sum", KEPT), (SUMS, KEPT_IN_ALL)):
            for file in sorted(self.directory.glob(pattern), key=_written)[:-kept]:
                file.unlink(missing_ok=True)


def _written(file: Path) -> int:
    """When a file was written; another run may have removed it meanwhile."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime_ns
    return 0
