"""A client's records as every method sees them: only clipped sums are taken of them.

A linear head and a deep network differ in how they compute these sums, and in nothing else.
"""

from typing import NamedTuple, Protocol, Self

from fedsofim.core.arrays import Array, Scale
from fedsofim.core.sums import BoundedSum


class Covariances(NamedTuple):
    """The two Kronecker factors of a layer's Fisher matrix, in float64.

    Attributes:
        G: of the gradients at the layer's outputs, `(out, out)`.
        A: of the layer's inputs, with a last 1 if it has a bias, `(in, in)`.
    """

    G: Array
    A: Array


class Factors(NamedTuple):
    """A public transform of gradients, `U_G g U_A` in every layer.

    Attributes:
        U_G: `(out, out)`; of several layers the factors one after another, flat.
        U_A: `(in, in)`; the same.
    """

    U_G: Array
    U_A: Array


class Records(Protocol):
    """Labelled records, and what may be computed on them."""

    @property
    def size(self) -> int:
        """How many records there are."""

    @property
    def labels(self) -> Array:
        """The class of each record, `(N,)`. Not private: for a test set."""

    def part(self, which: slice | Array) -> Self:
        """Some of the records: a slice of them, or those with these numbers."""

    def with_transform(self, factors: Factors) -> Self:
        """The same records, whose gradients are transformed before they are clipped."""

    def gradient_sum(self, theta: Array, clip: Scale, exact: bool = False) -> BoundedSum:
        """The sum of the records' gradients, each transformed and then clipped to norm `clip`.

        It has the shape of `theta`. If `exact`, it is a sum of integers, and replacing a record
        moves it by at most twice its bound, to the last bit; else it is fast, and float32 rounds.
        """

    def evaluate(self, theta: Array) -> tuple[float, float]:
        """Accuracy and mean cross-entropy."""

    def predict(self, theta: Array) -> Array:
        """The most likely class of each record, `(N,)`."""

    def curvature(self, theta: Array) -> list[Covariances]:
        """The Kronecker factors of every layer. Not private: for probes, or where that is known."""
