r"""Curvature without data: what is done to every record's gradient before it is clipped.

DP-KFC (Molina Van den Bosch et al. 2026, https://arxiv.org/abs/2605.13418) sends each layer's
gradient through $g \to U_G\,g\,U_A$ with $U = (C + \gamma I)^{-1/2}$ of the covariances of the
layer's inputs (A) and output gradients (G). They are measured on synthetic probes with random
labels, so the transform is public and costs no privacy; the clip follows it, so whatever it is, the
noise hides a record as before.

The server makes the factors and broadcasts them: all clients share them and none needs the probes.
"""

import math
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Literal

import numpy as np

from fedsofim.core.arrays import Array, of_the_last
from fedsofim.core.errors import require
from fedsofim.core.linalg import inverse_root
from fedsofim.models.records import Covariances, Factors, Records
from fedsofim.strategies.stage import Stage

Normalise = Literal["gradients", "network", "eigenvalues", "none"]
Source = Literal["nothing", "probes", "private"]
LEAST = 1e-4  # of the largest eigenvalue is added to all
WIDE, REMEMBERED = 32, 1 << 27  # the width of a factor that is worth remembering; bytes in all
_roots: dict[tuple[Any, ...], Array] = {}


@dataclass(frozen=True, kw_only=True)
class Transform:
    """No transform: a gradient is clipped as it is.

    One of your own gives `Factors` in `refresh`, from public values alone; the clip follows it.

    Attributes:
        name: what the config calls it.
        source: what the factors are measured on.
        maps: whether records are mapped, so that training begins with parameters of zero.
    """

    name: ClassVar[str] = "none"
    source: ClassVar[Source] = "nothing"
    maps: ClassVar[bool] = False

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What clients release before the first round, for this transform; nothing by default."""
        return ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = vars(cls).get("name", cls.__name__)

    def refresh(self, t: int, theta: Array, probes: Records | None, before: Any) -> Any:
        """What all clients receive in round `t` (from 0) besides the rule's own broadcast.

        It follows from the server's state alone, so a resumed run continues as it would have.

        Args:
            t: the round.
            theta: the parameters at its beginning.
            probes: what the factors are measured on.
            before: what they received in the round before.
        """
        return before


@dataclass(frozen=True, kw_only=True)
class KFC(Transform):
    r"""DP-KFC: Kronecker factors from synthetic probes.

    Attributes:
        damping: $\gamma$ over the covariance's largest eigenvalue, at least 1e-4.
        absolute: whether the damping is $\gamma$ itself, as in the paper, whose value is 1e-3; it
            is at least 1e-4 of the largest eigenvalue all the same.
        floor: eigenvalues are raised to this part of the largest.
        sides: whether the transform is $U_G g U_A$, or has one factor only.
        normalise: how a factor is scaled, which decides what a clip or a learning rate means.
            `gradients`: probes keep their mean square in every layer, so a clip means much what it
            meant without the transform. `network`: they keep it in all layers together, and layers
            weigh as in the paper. `eigenvalues`: the factor's mean square eigenvalue is 1.
        refresh_every: rounds between looks at the model; 0 keeps the first factors.
        count: how many probes; by default all of a file, or 512 that are made.
        noise: `pink` or `white`, where probes are made: for images. Features bring their own, and
            for texts they are random tokens.
        alpha: of pink noise, whose spectrum falls as $1/f^\alpha$.
        spectrum: what of it falls so. The paper's $\alpha$ is that of the power, half of which is
            that of the `amplitude`: its 1 is 0.5 here, unless this is `power`.
        probes: a `.npz` file with `probe_x`, for data that brings none; or of public images, for
            networks on images.
    """

    name: ClassVar[str] = "kfc"
    source: ClassVar[Source] = "probes"

    damping: float
    absolute: bool = False
    floor: float = 0.0
    sides: Literal["both", "input", "output"] = "both"
    normalise: Normalise = "gradients"
    refresh_every: int = 10
    count: int | None = None
    noise: Literal["pink", "white"] = "pink"
    alpha: float = 1.0
    spectrum: Literal["amplitude", "power"] = "amplitude"
    probes: str | None = None

    def __post_init__(self) -> None:
        # Below, float32 rounding of a sum could be magnified beyond a thousandth of its clip.
        require(LEAST <= self.damping < math.inf, f"damping={self.damping}: must be at least 1e-4")
        require(0 <= self.floor <= 1, f"floor={self.floor}: must be between 0 and 1")
        every = self.refresh_every
        require(every >= 0, f"refresh_every={every}: must be >= 0 (0: never)")
        require(self.count is None or self.count >= 1, f"count={self.count}: must be at least 1")
        require(0 <= self.alpha < math.inf, f"alpha={self.alpha}: must be >= 0")

    @property
    def decay(self) -> float:
        """The exponent of the amplitude of probes that are made; 0 for white noise."""
        alpha = self.alpha if self.noise == "pink" else 0.0
        return alpha / 2 if self.spectrum == "power" else alpha

    def refresh(self, t: int, theta: Array, probes: Records | None, before: Any) -> Any:
        due = t % self.refresh_every == 0 if self.refresh_every else t == 0
        if not due or not (np.isfinite(theta).all() or before is None):
            return before  # what diverged has no curvature
        assert probes is not None
        return self.factors(probes.curvature(theta))

    def factors(self, layers: list[Covariances]) -> Factors:
        """The transform that these covariances ask for, in float32."""
        U_G = [self._factor(layer.G, self.sides != "input") for layer in layers]
        U_A = [self._factor(layer.A, self.sides != "output") for layer in layers]
        if self.normalise == "network":
            before = sum(_square(layer.G) * _square(layer.A) for layer in layers)
            after = sum(
                _square(layer.G, G) * _square(layer.A, A)
                for layer, G, A in zip(layers, U_G, U_A, strict=True)
            )
            U_G = [U * math.sqrt(before / after) for U in U_G] if after else U_G
        return Factors(join(U_G), join(U_A))

    def _factor(self, C: Array, wanted: bool) -> Array:
        if not wanted:
            return np.eye(len(C)) if C.ndim == 2 else np.ones(len(C))
        make = _scaled_root if len(C) < WIDE else _remembered
        return make(C, self.damping, self.floor, LEAST if self.absolute else 0.0, self.normalise)


@dataclass(frozen=True, kw_only=True)
class Oracle(KFC):
    """KFC with factors from the private records themselves: a yardstick, and not private.

    Attributes:
        i_know_this_is_not_private: must be true to use it in a run that adds noise, which then
            claims no privacy.
    """

    name: ClassVar[str] = "oracle"
    source: ClassVar[Source] = "private"

    i_know_this_is_not_private: bool = False


def _square(C: Array, U: Array | None = None) -> float:
    """The mean square of vectors of covariance C, whole or a diagonal: tr(C), or tr(U C U)."""
    if U is None:
        return float(C.trace() if C.ndim == 2 else C.sum())
    return float(np.vdot(U, C @ U if C.ndim == 2 else C * U))


def _scaled_root(
    C: Array, damping: float, floor: float, least: float, normalise: Normalise
) -> Array:
    """`inverse_root`, scaled: vectors of this covariance keep their size, or eigenvalues theirs."""
    U = inverse_root(C, damping, floor, least)
    if normalise == "gradients" and C.any():
        U /= math.sqrt(_square(C, U) / _square(C))  # tr(U C U) = tr(C)
    elif normalise == "eigenvalues":
        U /= math.sqrt(np.vdot(U, U) / len(U))
    return U


@of_the_last
def _digest(C: Array) -> bytes:
    return sha256(C.tobytes()).digest()


def _remembered(C: Array, *settings: Any) -> Array:
    """`_scaled_root` of a wide covariance, in float32; for the same one it is the same array.

    The first layer sees the same probes each time.
    """
    key = _digest(C), *settings
    U = _roots.pop(key, None)
    if U is None:
        U = _scaled_root(C, *settings).astype(np.float32)
    _roots[key] = U  # last used, last forgotten
    while len(_roots) > 1 and sum(root.nbytes for root in _roots.values()) > REMEMBERED:
        del _roots[next(iter(_roots))]
    return U


def join(matrices: list[Array]) -> Array:
    """One layer's factor as it is, those of several one after another, in float32."""
    whole = matrices[0] if len(matrices) == 1 else np.concatenate([m.ravel() for m in matrices])
    return whole.astype(np.float32, copy=False)
