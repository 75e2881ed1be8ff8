"""What a client program discloses: what the accountant must know of it, and all it is told."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from fedsofim.core.errors import require


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    r"""What a program discloses about a record. Nothing here has a harmless default.

    Attributes:
        releases: how many releases of a clipped sum the first n rounds are worth, as a function of
            n. They compose as that many Gaussian mechanisms, so it need not be a whole number; a
            program that sends nothing says 0 for every n.
        shares_noise: whether clients may share the noise when only their sum is seen. They may if a
            release is a clipped sum at the broadcast parameters plus Gaussian noise. They may not
            if a client acts on its own release before it is summed: that step would be hidden by
            its own small part of the noise alone.
        record_moves_others: whether adding or removing a record changes what the client does with
            its other records. The clip then bounds replacing a record, but not adding or removing
            one.
        uses_part: whether a step uses a part of the records, which `releases` does not account for.

    >>> twice = Disclosure(
    ...     releases=lambda rounds: 2 * rounds,
    ...     shares_noise=False,
    ...     record_moves_others=False,
    ...     uses_part=False,
    ... )
    >>> twice.releases(70), twice.sends
    (140, True)
    """

    releases: Callable[[int], float]
    shares_noise: bool
    record_moves_others: bool
    uses_part: bool

    def __post_init__(self) -> None:
        require(callable(self.releases), "releases: must be a function of the number of rounds")
        for name in ("shares_noise", "record_moves_others", "uses_part"):
            value = getattr(self, name)
            require(isinstance(value, bool), f"{name}={value}: must be true or false")

    @property
    def sends(self) -> bool:
        """Whether anything is sent in a round."""
        return self.releases(1) > 0

    def check(self, rounds: int) -> None:
        """Refuse a count of releases that cannot be one, over the rounds of a run."""
        counts = [self.releases(n) for n in range(rounds + 1)]
        require(counts[0] == 0, f"releases: {counts[0]} before the first round; must be 0")
        for n, (before, after) in enumerate(pairwise(counts), 1):
            require(
                before <= after < math.inf,
                f"releases: {after} after round {n}, and {before} before it; must be finite and "
                "never fall",
            )
        require(
            self.sends or counts[-1] == 0,
            f"releases: {counts[-1]} in {rounds} rounds, and none in the first; a program sends in "
            "every round or in none",
        )


class Discloses(Protocol):
    """A client program, as the accountant sees it."""

    @property
    def disclosure(self) -> Disclosure:
        """What it discloses."""
