r"""Exact noise for exact sums: a discrete Gaussian on the integers, from the system's entropy.

Gaussian noise in floating point is not Gaussian: only some numbers can be noise, and this betrays
the sum under it (Mironov 2012). Here sums are integers (`models/exact_sums.py`),
the noise is an integer, every integer can be reached from every sum, and the probabilities are
those of the discrete Gaussian, $P(n) \propto e^{-n^2/2s^2}$, exactly (Canonne, Kamath & Steinke
2020, https://arxiv.org/abs/2004.00010), as OpenDP samples it from the operating system's entropy.
All that is done with the noisy integers afterwards, also in floats, is post-processing.

**What it costs.** The accountant charges $\mu = \Delta/s$ as for a continuous Gaussian. That is
right:

*Rounded, it is exactly $\mu$-GDP.* For integer sums S and $X \sim N(0, s^2 I)$, rounding S + X to
integers gives S + rint(X). It is post-processing of the Gaussian mechanism, of which the accountant
speaks; let q be the distribution of a coordinate of rint(X).

*The discrete Gaussian p is as good as q.* With $y = n/s^2$, $q(n) =
\frac{e^{-n^2/2s^2}}{\sqrt{2\pi}s} \int_{-1/2}^{1/2} e^{-yt - t^2/2s^2} dt$, and the integral lies
between $e^{-1/8s^2}$ and $\sinh(y/2)/(y/2) \le e^{y^2/24}$. By Poisson summation p's normalisation
differs from $\sqrt{2\pi}s$ by a factor of at most $1 + 3e^{-2\pi^2s^2}$. Hence $|\log p(n)/q(n)|
\le (1 + n^2/3s^2) / 8s^2$, up to that factor. Over all M numbers of all releases, however each
depends on those before, these add up, and $\sum n^2/s^2 \le 2M + 3L$ but for a probability of
$e^{-L}$: together at most $h = (2M + L)/8s^2$. So what is $(\varepsilon, \delta)$-DP with q is
$(\varepsilon + 2h, e^{h}\delta + 2e^{-L})$-DP with p. With a million numbers, L = 500 and the least
s that is accepted here, $2^{25}$, h is 3e-10; at $s = 2^{39}$, noise 8 times the clip, it is 1e-18.
The accountant's `SAFETY`, 1e-9, is there for such things.
"""

import math
from typing import NamedTuple

import numpy as np

from fedsofim.core.arrays import Array, Scale
from fedsofim.core.errors import require
from fedsofim.core.sums import BoundedSum

# Below, the discrete Gaussian is not as good as the continuous one for the accountant's digits;
# above, noise might leave int64, with a probability that is no longer below e^-500.
LEAST_STD, LARGEST_STD = 2.0**25, 2.0**57


class ExactNoise(NamedTuple):
    """The noise on what leaves a machine: nobody can repeat it, and it can be any integer."""

    @property
    def exact(self) -> bool:
        """It hides sums of exact integers."""
        return True

    def gaussian(self, total: BoundedSum, noise_multiplier: Scale) -> Array:
        """Independent integers of std `bound * noise_multiplier`, of the shape of the sum."""
        # A stack's multipliers are float32: the next one is no less than what was planned.
        stacked = isinstance(noise_multiplier, np.ndarray)
        z = float(np.nextafter(noise_multiplier, np.inf).item() if stacked else noise_multiplier)
        z *= bool(np.any(noise_multiplier))
        if z == 0:
            return np.zeros_like(total.value)
        if total.value.dtype != np.int64:
            raise TypeError(f"exact noise hides sums of integers, not of {total.value.dtype}")
        std = math.nextafter(float(total.bound) * z, math.inf)  # the product may be rounded down
        require(
            LEAST_STD <= std <= LARGEST_STD,
            f"noise_multiplier={z:g}: exact noise needs one between "
            f"{LEAST_STD / float(total.bound):.2g} and {LARGEST_STD / float(total.bound):.2g}",
        )
        return discrete_gaussian(total.value.size, std).reshape(total.value.shape)


def discrete_gaussian(count: int, std: float) -> Array:
    """Independent integers n with probability in proportion to `exp(-n^2 / (2 std^2))`."""
    from opendp.domains import atom_domain, vector_domain  # a second that only releases should take
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")  # OpenDP's name for all that outsiders wrote and vetted
    integers = vector_domain(atom_domain(T="i64"))
    release = make_gaussian(integers, l2_distance(T="f64"), scale=std)
    return np.array(release([0] * count), np.int64)
