"""The client that has said all before the first round: it sends nothing in one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsofim.clients.group import Client
from fedsofim.clients.program import Noise, Program, Stateless
from fedsofim.core.arrays import Array
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.plan import Protection


@dataclass(frozen=True, kw_only=True)
class Silent(Program):
    """The client of a rule that is done with what the stages released, such as `ridge`.

    It sends an empty array in a round. What its stages release is charged as everywhere.

    >>> Silent().disclosure.sends
    False
    """

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            releases=lambda rounds: 0,
            shares_noise=True,  # it acts on nothing that it has released
            record_moves_others=False,
            uses_part=False,
        )

    def release(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Stateless,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Stateless]:
        theta = received["theta"]
        return np.empty((len(clients), *theta.shape[:-2], 0), theta.dtype), state

    def contribute(
        self,
        received: Mapping[str, Array],
        clients: Sequence[Client],
        state: Stateless,
        plan: Protection,
        noise: Noise,
    ) -> tuple[Array, Stateless]:
        return np.empty((len(clients), 0), np.int64), state
