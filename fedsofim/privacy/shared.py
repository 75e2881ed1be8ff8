r"""Noise that clients share: each adds a part, and any sum that can be seen has the whole.

With secure aggregation nobody sees less than the sum over some set of clients, of whom at least h
are honest: they did add their noise, and tell nobody. A colluder's noise is worth nothing, and
neither is that of one who vanished. So every client adds a discrete Gaussian of std
$s = \sigma/\sqrt{h}$, and the accountant charges $\sigma$, whoever is left in the end.

**What it costs.** The same as noise of one client, to all the digits there are:

*The sum of discrete Gaussians is one, almost.* Let $p_s(n) \propto e^{-n^2/2s^2}$ on the integers
(`exact`), and add X of std v and Y of std s. Completing the square,

$$P[X + Y = n] \propto e^{-n^2/2(v^2+s^2)}\,\theta(n), \qquad
  \theta(n) = \sum_m \frac{e^{-(m-\mu_n)^2/2r^2}}{\sqrt{2\pi}r},
  \qquad r^2 = \frac{v^2s^2}{v^2+s^2}.$$

By Poisson summation $|\theta(n) - 1| \le 2\sum_{j\ge1} e^{-2\pi^2r^2j^2} \le 3e^{-2\pi^2r^2}$ for
*every* n. The normalisation is a mean of such numbers, so $|\log P[X+Y=n]/p_{\sqrt{v^2+s^2}}(n)|
\le 7e^{-2\pi^2r^2}$, as long as $r \ge 1/2$. Adding client after client, each of a std of s or
more, $r^2 \ge s^2/2$ each time, and the logarithms add up: for j clients, *at every integer*,

$$\Big|\log\frac{P[X_1 + \dots + X_j = n]}{p_\sigma(n)}\Big| \le 7(j-1)e^{-\pi^2s^2},
  \qquad \sigma^2 = \sum_i s_i^2.$$

Kairouz, Liu & Steinke (2021, https://arxiv.org/abs/2102.06387, Theorem 1) have the same sum with 10
in place of 7. Over all M numbers of all releases, however each depends on those before, it is M
times that, call it H: what is $(\varepsilon, \delta)$-DP with one discrete Gaussian is
$(\varepsilon + 2H, e^H\delta)$-DP with the sum. With the least s that is accepted here,
$2^{25}$, the exponent is $-10^{16}$: H is zero for any M and j that a computer can count. What
`exact` says of one discrete Gaussian of std $\sigma \ge s$ holds then, and is what `SAFETY` covers.

*More honest clients than h* only add to $\sigma^2$, and less is revealed than is charged.

*Modulo $2^{64}$.* Masks need residues. The residue of the noisy sum is a function of it, so it
costs nothing; that it *is* the sum, as an int64, is a matter of room, see `check_room`.
"""

import math

from fedsofim.core.errors import require
from fedsofim.privacy.exact import LARGEST_STD, LEAST_STD

# The sum of the noise exceeds so many stds with a probability below e^-700.
REACH = 38


def client_part(std: float, honest: int) -> float:
    r"""The noise of one client, in the same numbers, if `honest` add their parts; rounded upwards.

    >>> client_part(3.0, 9), client_part(0.0, 5)
    (1.0, 0.0)
    """
    require(honest >= 1, f"honest={honest}: somebody must add noise")
    part = std / math.sqrt(honest)
    while part * part * honest < std * std:
        part = math.nextafter(part, math.inf)
    return part


def log_distance(std: float, clients: int) -> float:
    """How far the sum of so many discrete Gaussians is from one, at any integer, in logarithm.

    Args:
        std: the least of one client's, in integers.
        clients: who add noise.
    """
    require(std >= 1, f"std={std:g}: the bound is for 1 or more")
    return 7 * (clients - 1) * math.exp(-((math.pi * std) ** 2))


def check_part(std: float) -> None:
    """Refuse noise of one client, in integers, for which the proof above does not hold."""
    require(
        LEAST_STD <= std <= LARGEST_STD,
        f"std={std:g}: each client's part of the noise must be between 2^25 and 2^57 units",
    )


def check_room(records: int, bound: float, std: float, clients: int) -> None:
    """Refuse sums that might leave int64; but for a probability of e^-700 a number, none does.

    Args:
        records: of all clients.
        bound: the largest norm of one record's contribution, in integers.
        std: of one client's noise, in integers.
        clients: how many there are.
    """
    need = records * bound + REACH * std * math.sqrt(clients)
    require(
        need < 2.0**63,
        f"{records} records of {clients} clients: a sum of up to 2^{math.log2(max(need, 1)):.1f} "
        "units does not fit into 64 bits",
    )
