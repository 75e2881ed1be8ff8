"""Bytes become arrays only if they are exactly what they are said to be."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedsofim.federation.decoding import TYPES, DecodingError, decode, shown
from fedsofim.federation.inflation import at_most


@settings(max_examples=200, deadline=None)
@given(
    arrays.arrays(
        st.sampled_from(sorted(TYPES)).map(np.dtype),
        arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    st.booleans(),
)
def test_it_reads_what_flower_writes(array: Any, fortran: bool) -> None:
    array = np.asfortranarray(array) if fortran else array
    made = decode(FlowerArray(array))
    np.testing.assert_array_equal(made, array)
    assert made.dtype == array.dtype
    assert not made.flags.owndata  # no memory of its own


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["float32", "int64", "object", "V8"]))
def test_it_reads_nothing_else(data: bytes, dtype: str) -> None:
    with pytest.raises(DecodingError):
        decode(FlowerArray(dtype, (3, 7), "numpy.ndarray", data))


@pytest.mark.parametrize("cut", [1, 4, 84, 100, 128, 200])
def test_not_a_byte_may_be_missing_or_too_much(cut: int) -> None:
    good = FlowerArray(np.zeros((3, 7), np.float32))
    for data in (good.data[:-cut], good.data + bytes(cut), good.data[cut:]):
        with pytest.raises(DecodingError):
            decode(FlowerArray("float32", (3, 7), "numpy.ndarray", data))


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.integers(), st.floats(), st.lists(st.text()), st.binary()))
def test_whatever_is_shown_is_one_short_harmless_line(value: Any) -> None:
    text = shown(value)
    assert text.isprintable()
    assert len(text) <= 160
    assert not set(text) & set("<>")
    text.encode()


def test_odd_values_are_shown() -> None:
    for value in (10**5000, ["\ud800"] * 10**5, {1: {2: {3: [4]}}}, "[/red]", None):
        assert shown(value).isprintable()
        assert "[/" not in shown(value)


def swollen(times: int) -> tuple[str, dict[str, bytes]]:
    """A message in pieces, whose array says that it is made of the same piece many times."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    record = ArrayRecord({"release": FlowerArray(np.zeros(1 << 18, np.float32))})
    message = Message(RecordDict({"arrays": record, "config": ConfigRecord()}), 1, "train")
    parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    for name, part in parts.items():
        if b'"arraychunk_ids": [0]' in part:
            _, body = part.split(b"\x00", 1)
            grown = body.replace(b"[0]", str([0] * times).encode())
            head = part.split(b"\x00", 1)[0].rsplit(b" ", 1)[0]
            parts[name] = head + b" " + str(len(grown)).encode() + b"\x00" + grown
    return message.object_id, parts


def test_a_megabyte_that_is_named_a_hundred_thousand_times_is_not_copied() -> None:
    name, parts = swollen(100_000)
    with at_most(64 << 20), pytest.raises(ValueError, match="too large"):
        inflate_object_from_contents(name, dict(parts))
    name, parts = swollen(3)
    with at_most(64 << 20):
        made = inflate_object_from_contents(name, dict(parts))
    assert isinstance(made, Message)
    assert len(made.content["arrays"]["release"].data) > 3 << 20
