"""How the server combines the releases of a round: by a mean, or robust to malicious clients.

All of it works on what is released, so it costs no privacy. The robust ones must see each release
by itself, so they need `privacy.trust=server`. They ignore sizes: who lies about gradients may lie
about sizes, too.

The breakdown point is the fraction of clients that may send anything at all before the result can
be moved without limit. Below it the result is bounded, not right: clients with unlike data differ
honestly, and what a rule takes for a liar may be the only one that knows a class.
"""

import math
from typing import Literal

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require

Aggregation = Literal["uniform", "size", "median", "trimmed", "krum"]


def aggregate(
    releases: Array,
    sizes: Array,
    how: Aggregation,
    malicious_fraction: float = 0.1,
    *,
    stacked: bool = False,
) -> Array:
    """Combine the clients' releases `(n, ...)`, sorted by client, into `G`.

    Args:
        releases: what each client released.
        sizes: how many records each has; public.
        how: `uniform` is the mean of the releases (the paper); `size` weighs each by its number of
            records, which carries less noise when clients are uneven; `median`, `trimmed` and
            `krum` bear malicious clients.
        malicious_fraction: of the clients, rounded up, for `trimmed` and `krum`.
        stacked: whether releases are stacks of independent heads, `(n, S, ...)`.
    """
    combined = Combined(how, malicious_fraction, stacked=stacked)
    combined.add(releases, sizes)
    return combined.result()


class Combined:
    """The same for releases that come in groups, sorted by client, of which a mean keeps none.

    A mean adds up one client after another, so it has the same bits however they are grouped. Who
    is among them need not be known before the last has come.

    Args:
        how: as `aggregate` takes it; and so are the others.
        malicious_fraction: of the clients.
        stacked: whether releases are stacks of independent heads.
    """

    def __init__(
        self, how: Aggregation, malicious_fraction: float = 0.1, *, stacked: bool = False
    ) -> None:
        self.how, self.stacked = how, stacked
        self.malicious_fraction = malicious_fraction
        self._weight = 0
        self._total: Array | None = None
        self._kept: list[Array] = []

    @property
    def keeps(self) -> bool:
        """Whether it keeps every release: the robust ones compare each with all."""
        return self.how not in ("uniform", "size")

    def add(self, releases: Array, sizes: Array) -> None:
        """Take the releases `(m, ...)` of the next m clients, and how many records each has."""
        if self.keeps:
            self._kept.append(releases)
            return
        self._weight += int(np.sum(sizes)) if self.how == "size" else len(releases)
        if self.how == "size":
            weights = np.asarray(sizes).astype(releases.dtype)
            releases = releases * weights.reshape(-1, *(1,) * (releases.ndim - 1))
        if self._total is not None:
            releases = np.concatenate([self._total[None], releases])
        self._total = np.asarray(np.add.reduce(releases, axis=0))

    def result(self) -> Array:
        """What all of them come to."""
        if self._total is not None:
            return np.asarray(self._total / self._weight)  # Algorithm 1, line 11
        releases = self._kept[0] if len(self._kept) == 1 else np.concatenate(self._kept)
        if self.how == "median":
            return median(releases)
        f = liars(len(releases), self.malicious_fraction)
        if self.how == "trimmed":
            return trimmed(releases, f)
        if self.stacked:
            return np.stack([krum(releases[:, s], f) for s in range(releases.shape[1])])
        return krum(releases, f)


def liars(clients: int, malicious_fraction: float) -> int:
    """How many of a round's clients may lie: f, the fraction rounded up.

    >>> liars(10, 0.1), liars(11, 0.1), liars(20, 0.0)
    (1, 2, 0)
    """
    return math.ceil(clients * malicious_fraction - 1e-9)


def bears(how: Aggregation, malicious_fraction: float, releases: int) -> bool:
    """Whether `how` bears that part of liars among so many releases.

    >>> bears("trimmed", 0.1, 3), bears("krum", 0.1, 4), bears("krum", 0.1, 5)
    (True, False, True)
    """
    f = liars(releases, malicious_fraction)
    return releases >= {"trimmed": 2 * f + 1, "krum": 2 * f + 3}.get(how, 1)


def median(releases: Array) -> Array:
    """The median of each coordinate. Breakdown point 1/2.

    Of n honest releases with normal noise it carries about sqrt(pi/2) = 1.25 times the noise of
    their mean.

    >>> median(np.array([[1.0, 5.0], [2.0, 4.0], [1e9, -1e9]])).tolist()
    [2.0, 4.0]

    References:
        Yin et al. 2018, https://arxiv.org/abs/1803.01498.
    """
    return np.asarray(np.median(releases, axis=0)).astype(releases.dtype, copy=False)


def trimmed(releases: Array, f: int) -> Array:
    """The mean of each coordinate without its f largest and f smallest. Breakdown point f/n.

    >>> trimmed(np.array([[1.0], [2.0], [3.0], [1e9]]), 1).tolist()
    [2.5]

    References:
        Yin et al. 2018, https://arxiv.org/abs/1803.01498.
    """
    n = len(releases)
    require(2 * f < n, f"aggregation=trimmed: {n} releases are too few to leave out 2 x {f}")
    ordered = np.sort(releases, axis=0)
    return np.asarray(ordered[f : n - f].mean(axis=0))


def krum(releases: Array, f: int) -> Array:
    """The mean of the n - f releases that lie closest to others (Multi-Krum). Breakdown (n-3)/(2n).

    The score of a release is the sum of its squared distances to its n - f - 2 nearest others. The
    single best one, Krum itself, would carry the whole noise of one client.

    >>> krum(np.array([[1.0], [1.2], [1.1], [0.9], [1e9]]), 1).round(6).tolist()
    [1.05]

    References:
        Blanchard et al. 2017, https://arxiv.org/abs/1703.02757.
    """
    n = len(releases)
    require(n >= 2 * f + 3, f"aggregation=krum: {n} releases are too few against {f} malicious")
    rows = releases.reshape(n, -1).astype(np.float64)
    squares = np.array([((rows - row) ** 2).sum(axis=1) for row in rows])
    nearest = np.sort(squares, axis=1)[:, 1 : n - f - 1]  # without itself, at distance 0
    kept = np.sort(np.argsort(nearest.sum(axis=1), kind="stable")[: n - f])
    return np.asarray(releases[kept].mean(axis=0))


def noise_gain(sizes: Array, how: Aggregation) -> float:
    """The std of the noise in an aggregate of means, over that of one client's noise on its sum.

    With weights w that is sqrt(sum (w_i / |D_i|)^2). For the robust rules it is that of the plain
    mean, and for the median sqrt(pi / 2) times as much: what they leave out is not known.

    >>> round(noise_gain(np.array([100, 100, 100, 100]), "size"), 6)
    0.005
    """
    if how == "size":
        return math.sqrt(len(sizes)) / float(sizes.sum())
    plain = math.sqrt(float((1 / sizes.astype(np.float64) ** 2).sum())) / len(sizes)
    return plain * math.sqrt(math.pi / 2) if how == "median" else plain
