"""A server's side: it shows, collects, and ends with a sum.

It keeps the sum of the masked vectors, not the vectors. What it is sent cannot make it raise: a
client whose answer is wrong is left out like one that is silent, and is named in `faults`. A sum
that cannot be had any more is a `LostError`.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.secagg import primitives as crypto
from fedsofim.secagg import stages, wire
from fedsofim.secagg.errors import DistrustError, LostError, Reason, trust
from fedsofim.secagg.primitives import SEALED, SEED, TAG, PublicKey
from fedsofim.secagg.session import Policy, Session
from fedsofim.secagg.stages import Advert, Stage

Requests = dict[int, bytes]


class Result(NamedTuple):
    """What a session is for.

    Attributes:
        total: the sum of the survivors' vectors, int64.
        survivors: whose vectors are in it, sorted.
    """

    total: Array
    survivors: tuple[int, ...]


class Server:
    """One session, from the first request to the sum.

    `open` gives the first requests. Give each answer to `take`, and when no more are to be waited
    for, `close` gives the next requests: none, when `result` is there. Those in `waiting` may be
    asked again, in the same words.

    Args:
        session: what all agree on.
        keys: the clients' long-term public keys, by number.
    """

    def __init__(self, session: Session, keys: Mapping[int, PublicKey]) -> None:
        self.session, self.keys = session, keys
        self._probe = X25519PrivateKey.generate()  # no key of a client may be of small order
        self.stage, self.waiting = Stage.ADVERT, set[int]()
        self.faults: dict[int, str] = {}
        self.result: Result | None = None
        self._answers: dict[Stage, dict[int, tuple[bytes, ...]]] = {stage: {} for stage in Stage}
        self._total = np.zeros(session.length, np.uint64)
        self._roster: list[int] = []
        self._message = b""  # what survivors sign
        self._root = b""
        self._windows: dict[int, tuple[tuple[int, ...], ...]] = {}

    def open(self, numbers: Iterable[int]) -> Requests:
        """The first requests, to the clients that are invited."""
        request = bytes([Stage.ADVERT]) + self.session.encode()
        self.waiting = set(numbers)
        strangers = sorted(self.waiting - self.keys.keys())
        require(not strangers, f"clients {strangers}: there is no key of them")
        return dict.fromkeys(sorted(self.waiting), request)

    def take(self, number: int, reply: bytes) -> str | None:
        """Take an answer; says why, if it is not right."""
        if number not in self.waiting:
            return f"{Reason.STAGE}: nothing was asked"
        self.waiting.discard(number)
        try:
            trust(stages.stage_of(reply) == self.stage, Reason.STAGE)
            self._answers[self.stage][number] = self._read(number, reply[1:])
        except DistrustError as error:
            self.faults.setdefault(number, str(error))
            return str(error)
        return None

    def close(self) -> Requests:
        """The requests of the next stage, to those who are still there; none after the last.

        Raises:
            LostError: too few are.
        """
        for number in self.waiting:
            self.faults.setdefault(number, f"silent in stage {self.stage.name}")
        self.waiting = set()
        here = sorted(self._answers[self.stage])
        late = {Stage.SIGN: self.session.signers(len(self._roster)), Stage.UNMASK: 0}
        least = late.get(self.stage, self.session.threshold)
        self._need(len(here) >= least, f"{len(here)} clients answered, and {least} are needed")
        order = stages.ALL if self.session.recover else stages.WITHOUT_RECOVERY
        if self.stage == order[-1]:
            self.result = self._finish()
            return {}
        last, self.stage = self.stage, order[order.index(self.stage) + 1]
        make = {
            Stage.ADVERT: self._introduce,
            Stage.SHARE: self._deliver,
            Stage.MASK: self._list,
            Stage.SIGN: self._certify,
        }
        bodies = make[last](here)
        self.waiting = set(bodies)
        head = [self.session.name]
        return {i: bytes([self.stage]) + wire.join(head + body) for i, body in bodies.items()}

    def _need(self, condition: bool, message: str, clients: Iterable[int] = ()) -> None:
        if not condition:
            raise LostError(f"{self.stage.name}: {message}", clients or self.faults)

    def _read(self, number: int, body: bytes) -> tuple[bytes, ...]:
        """Check an answer as far as it can be checked by itself, and take it apart."""
        if self.stage == Stage.ADVERT:
            advert = stages.read_advert(body, self.session, number)
            signed = crypto.signed(self.keys[number], advert.signature, advert.message)
            trust(signed, Reason.KEYS)
            for key in filter(None, (advert.masks, advert.seals)):
                usable = crypto.agree(self._probe, key) is not None
                trust(usable, Reason.KEYS)  # its neighbours would refuse to go on
            return (body,)
        k = sum(map(len, self._windows[number]))
        if self.stage == Stage.MASK:
            vector, confirmations = wire.split(body, 2)
            wire.pieces(confirmations, SEALED, k if self.session.recover else 0)
            self._total += wire.read_vector(vector, self.session.length)
            return (confirmations,)
        if self.stage == Stage.SIGN:
            trust(crypto.signed(self.keys[number], body, self._message), Reason.SIGNATURES)
            return (body,)
        if self.stage == Stage.SHARE:
            envelopes, tags = wire.split(body, 2)
            wire.pieces(envelopes, 2 * SEED + SEALED, k)
            wire.pieces(tags, 2 * TAG, k)
            return envelopes, tags
        seed, shares = wire.split(body, 2)
        wire.pieces(shares, 1 + SEED, k)
        trust(self._fits_seed(number, seed), Reason.SHARES)
        return seed, shares

    def _introduce(self, here: list[int]) -> dict[int, list[bytes]]:
        """Show everybody who takes part, and the keys of the neighbours."""
        try:
            Policy(0).check(self.session, len(here))
        except DistrustError as error:
            raise LostError(f"{len(here)} clients: {error}", self.faults) from None
        self._roster, adverts = here, self._answers[Stage.ADVERT]
        digests = b"".join(stages.advert_digest(adverts[i][0]) for i in here)
        names = wire.integers(here)
        self._root, graph, _ = stages.read_roster(self.session, names, digests)
        self._windows = {i: graph.windows(i) for i in here}
        return {
            i: [names, digests, wire.join(adverts[v][0] for v in self._neighbours(i))] for i in here
        }

    def _neighbours(self, number: int) -> list[int]:
        return [other for window in self._windows[number] for other in window]

    def _deliver(self, here: list[int]) -> dict[int, list[bytes]]:
        """Hand out what is sealed, and say who has shared."""
        self._check_windows(here)
        shared = wire.bitmap(self._roster, here)
        mail = self._mail(Stage.SHARE, 2 * SEED + SEALED)
        return {
            i: [shared, b"".join(mail[v][i] for v in self._neighbours(i) if v in mail)]
            for i in here
        }

    def _mail(self, stage: Stage, size: int) -> dict[int, dict[int, bytes]]:
        """What clients sent to their neighbours in a stage, by sender and receiver."""
        mail = {}
        for sender, (sent, *_) in self._answers[stage].items():
            others = self._neighbours(sender)
            mail[sender] = dict(zip(others, wire.pieces(sent, size, len(others)), strict=True))
        return mail

    def _check_windows(self, here: list[int]) -> None:
        """Give up while nothing is unmasked, if somebody's secrets could not be had."""
        left = set(here)
        for i in self._answers[Stage.SHARE]:
            for window in self._windows[i]:
                enough = len(left.intersection(window)) >= self.session.quorum
                self._need(enough, f"too many neighbours of client {i} are gone")

    def _list(self, here: list[int]) -> dict[int, list[bytes]]:
        """Say who sent a vector, if all others can be done without."""
        self._check_windows(here)
        shared = wire.bitmap(self._roster, self._answers[Stage.SHARE])
        survivors = wire.bitmap(self._roster, here)
        self._message = stages.survivors_message(self._root, shared, survivors)
        return {i: [survivors] for i in here}

    def _certify(self, here: list[int]) -> dict[int, list[bytes]]:
        """Show as many signatures as are needed."""
        signers = here[: self.session.signers(len(self._roster))]
        signatures = wire.join(self._answers[Stage.SIGN][i][0] for i in signers)
        mail, none = self._mail(Stage.MASK, SEALED), bytes(SEALED)
        told = {i: [mail.get(v, {}).get(i, none) for v in self._neighbours(i)] for i in here}
        return {i: [wire.integers(signers), signatures, b"".join(told[i])] for i in here}

    def _finish(self) -> Result:
        """Take the masks off the sum."""
        survivors = sorted(self._answers[Stage.MASK])
        if self.session.recover:
            for i in survivors:
                given = self._answers[Stage.UNMASK].get(i)
                seed = given[0] if given else self._recover(i, 0)
                trusted = self._fits_seed(i, seed)
                self._need(trusted, f"the seed of client {i} is not the one it announced", [i])
                self._total -= crypto.stream(stages.self_key(seed, self._root), len(self._total))
            for i in sorted(self._answers[Stage.SHARE].keys() - set(survivors)):
                self._remove(i, self._recover(i, 1), set(survivors))
        else:
            gone = set(self._roster) - set(survivors)
            self._need(not gone, "a sum without recovery needs everybody on the roster", gone)
        return Result(self._total.view(np.int64), tuple(survivors))

    def _fits_seed(self, number: int, seed: bytes) -> bool:
        return stages.commitment_of(seed, self.session.name) == self._advert(number).commitment

    def _advert(self, number: int) -> Advert:
        return stages.read_advert(self._answers[Stage.ADVERT][number][0], self.session, number)

    def _recover(self, owner: int, kind: int) -> bytes:
        """A client's seed (kind 0) or that of its key (1), from its neighbours' shares."""
        halves: dict[int, bytes] = {}
        tags = wire.pieces(
            self._answers[Stage.SHARE][owner][1], TAG, 2 * len(self._neighbours(owner))
        )
        at = 0
        for part, window in enumerate(self._windows[owner]):
            shares = {}
            for place, holder in enumerate(window):
                share = self._share_of(owner, holder)
                if share is not None and crypto.tag(share) == tags[2 * (at + place) + kind]:
                    shares[place] = share
                elif share is not None:
                    self.faults.setdefault(holder, f"a wrong share of client {owner}")
            at += len(window)
            enough = len(shares) >= self.session.quorum
            self._need(enough, f"{len(shares)} shares of client {owner}, too few", [owner])
            halves[part] = crypto.combine_seed(shares, self.session.quorum)
        return crypto.combine_seed(halves, len(halves))

    def _share_of(self, owner: int, holder: int) -> bytes | None:
        given = self._answers[Stage.UNMASK].get(holder)
        if given is None:
            return None
        at = self._neighbours(holder).index(owner)
        share = given[1][(1 + SEED) * at : (1 + SEED) * (at + 1)]
        return share[1:] if share[0] else None

    def _remove(self, gone: int, seed: bytes, survivors: set[int]) -> None:
        """Take off the masks that survivors have in common with one that is gone."""
        key = crypto.private_key(seed, self.session.name)
        trusted = crypto.public_bytes(key) == self._advert(gone).masks
        self._need(trusted, f"the key of client {gone} is not the one it announced", [gone])
        for other in survivors.intersection(self._neighbours(gone)):
            common = crypto.agree(key, self._advert(other).masks)
            if common is None:
                continue  # it would have refused to add such a mask
            mask = crypto.stream(stages.mask_key(common, self._root, gone, other), len(self._total))
            # The other added the mask if the one that is gone has the lower number.
            (np.subtract if gone < other else np.add)(self._total, mask, out=self._total)
