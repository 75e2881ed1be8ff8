"""What a server asks for, and on what terms: as both sides know it."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedsofim.clients.program import Program
from fedsofim.core.arrays import Array
from fedsofim.privacy.plan import Plan
from fedsofim.privacy.sharing import Sharing, digest_of
from fedsofim.strategies.stage import Stage


class Request(NamedTuple):
    """What a server asks for: the run, the round (a stage is below 0), and the terms in full."""

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


class Terms(NamedTuple):
    """What a run's config says to a client.

    Attributes:
        program: what it does.
        plan: with what clip and noise.
        stages: what comes before the first round.
        sharing: with whom it shares its noise; `None` if what it sends is seen alone.
    """

    program: Program
    plan: Plan
    stages: Sequence[Stage] = ()
    sharing: Sharing | None = None

    @property
    def digest(self) -> str:
        """A name for all of it."""
        return digest_of(self.program, self.plan, self.stages, self.sharing)
