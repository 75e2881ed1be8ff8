"""What server and clients say to each other: named arrays, and a few plain values beside them.

Every message has one form, whatever the method: the server broadcasts arrays by name and asks for
something; the client answers with arrays by name, or with the reason why not.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsofim.core.arrays import Array

# The kinds of message: who a node is; what its clients release in a round.
HELLO = "query"
RELEASE = "train"
# Seconds between two looks for replies: while they come in, and at most.
FIRST_LOOK, LAST_LOOK = 0.002, 0.25


def encode(arrays: Mapping[str, Array]) -> dict[str, FlowerArray]:
    """Arrays in the form that messages carry; many messages can carry the same ones."""
    return {name: FlowerArray(array) for name, array in arrays.items()}


def pack(
    arrays: Mapping[str, Array], values: Mapping[str, Any], **encoded: FlowerArray
) -> RecordDict:
    """The content of a message: arrays, values, and arrays that are encoded already."""
    record = ArrayRecord({**encoded, **encode(arrays)})
    return RecordDict({"arrays": record, "config": ConfigRecord(dict(values))})


def unpack(content: RecordDict) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays and the values of a message; `KeyError` if it is not one of ours."""
    arrays, values = content["arrays"], content["config"]
    if not isinstance(arrays, ArrayRecord) or not isinstance(values, ConfigRecord):
        raise KeyError("arrays")
    return {name: array.numpy() for name, array in arrays.items()}, dict(values)


def exchange(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Message]:
    """Send messages and return the replies that come within `timeout` seconds.

    Flower's own `send_and_receive` sleeps up to three seconds between looks, which would be most
    of a round; this looks soon and then ever less often.
    """
    grid.push_messages(list(messages))
    waiting = {message.metadata.message_id for message in messages}
    replies: list[Message] = []
    deadline, pause = time.monotonic() + timeout, FIRST_LOOK
    while waiting:
        arrived = list(grid.pull_messages(waiting))
        replies += arrived
        waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
        if not waiting or time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = FIRST_LOOK if arrived else min(1.1 * pause, LAST_LOOK)
    return replies
