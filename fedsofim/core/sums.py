"""A sum over records together with its sensitivity, so that noise always fits the sum."""

from typing import Literal, NamedTuple

from fedsofim.core.arrays import Array, Scale

# What may change about a record.
Adjacency = Literal["replace-one", "add-remove"]


class BoundedSum(NamedTuple):
    """A sum over records, and the Euclidean norm that no record's contribution exceeds.

    Attributes:
        value: the sum, in floats; or in exact integers, which stand for multiples of `unit`.
        bound: the largest norm of one contribution, in the same numbers; or one a head.
        unit: what 1 stands for.
    """

    value: Array
    bound: Scale
    unit: float = 1.0
