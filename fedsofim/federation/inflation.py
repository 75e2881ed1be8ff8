"""How much memory Flower may take to unpack a reply.

A reply travels in pieces, and an array says which pieces it is made of: a few kilobytes can name
the same piece a million times. Flower copies them all before anyone sees the reply. Its registry
of message parts lets another class do that, which counts first.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flwr.app import Array as FlowerArray
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_children_ids_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry

# Bytes that the arrays of the reply at hand may still take; `None` for no limit.
_left: ContextVar[int | None] = ContextVar("left", default=None)


class Array(FlowerArray):
    """Flower's array; its pieces are put together only if they are not too large in all."""

    @classmethod
    def inflate(
        cls, object_content: bytes, children: dict[str, InflatableObject] | None = None
    ) -> FlowerArray:
        """The array from its head and its pieces."""
        left = _left.get()
        if left is not None:
            names = get_object_children_ids_from_object_content(object_content)
            pieces = json.loads(get_object_body(object_content, cls))["arraychunk_ids"]
            sizes = {k: len(c.data) for k, c in (children or {}).items() if type(c) is ArrayChunk}
            left -= sum(sizes[names[k]] for k in pieces)
            if left < 0:
                raise ValueError("the arrays of this message are too large")
            _left.set(left)
        return super().inflate(object_content, children)


inflatable_class_registry[Array.__qualname__] = Array


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Refuse messages whose arrays have more than `size` bytes; `ValueError` tells of them."""
    token = _left.set(size)
    try:
        yield
    finally:
        _left.reset(token)
