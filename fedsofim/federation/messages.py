"""What server and clients say to each other: named arrays, and a few plain values beside them.

Every message has one form, whatever the method: the server broadcasts arrays by name and asks for
something; the client answers with arrays by name, or with the reason why not.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedsofim.core.arrays import Array
from fedsofim.federation.decoding import decode, shown
from fedsofim.federation.inflation import at_most
from fedsofim.federation.replies import Asked, BadReplyError, Part, read

# The kinds of message: who a node is; what its clients release in a round.
HELLO = "query"
RELEASE = "train"
# Seconds between two looks for replies: while they come in, and at most.
FIRST_LOOK, LAST_LOOK = 0.002, 0.25
# Where every reply is a request of its own: a client's process needs a second to start, and looking
# takes from the same CPUs. So much longer than a look takes, nothing is looked for.
SINGLE_LOOK, IDLE = 0.1, 4.0
# The most bytes that the arrays of one owner's reply may have: it sends one head.
LARGEST_REPLY = 256 << 20
# Whose errors tell of a lost connection; any other tells of a damaged message.
NETWORK = {"httpx", "httpcore"}


def encode(arrays: Mapping[str, Array]) -> dict[str, FlowerArray]:
    """Arrays in the form that messages carry; many messages can carry the same ones."""
    return {name: FlowerArray(array) for name, array in arrays.items()}


def pack(
    arrays: Mapping[str, Array], values: Mapping[str, Any], **encoded: FlowerArray
) -> RecordDict:
    """The content of a message: arrays, values, and arrays that are encoded already."""
    record = ArrayRecord({**encoded, **encode(arrays)})
    return RecordDict({"arrays": record, "config": ConfigRecord(dict(values))})


def undecoded(content: RecordDict) -> tuple[dict[str, FlowerArray], dict[str, Any]]:
    """The arrays of a message, not decoded, and its values; `KeyError` if it is not one of ours."""
    arrays, values = content["arrays"], content["config"]
    if not isinstance(arrays, ArrayRecord) or not isinstance(values, ConfigRecord):
        raise KeyError("arrays")
    return dict(arrays), dict(values)


def unpack(content: RecordDict) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays and the values of a message; an error if they are not what they say they are."""
    arrays, values = undecoded(content)
    return unpack_arrays(arrays), values


def unpack_arrays(arrays: Mapping[str, FlowerArray]) -> dict[str, Array]:
    """Arrays by name, out of the form that messages carry."""
    return {name: decode(array) for name, array in arrays.items()}


def parts_of(reply: Message, asked: Asked) -> dict[int, Part | BadReplyError]:
    """For each client that was asked, its part in the round or what is wrong with its reply."""
    try:
        if reply.has_error():
            raise BadReplyError(f"failed: {shown(reply.error.reason)}")
        return read(*undecoded(reply.content), asked)
    except BadReplyError as error:
        why = error
    except Exception as error:  # whatever else a reply may hold
        why = BadReplyError(f"can't be read ({type(error).__name__})")
    return dict.fromkeys(asked.clients, why)


class _Pending(NamedTuple):
    """A question, and until when its answer counts."""

    message: Message
    until: float


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    *,
    singly: bool = False,
    at_once: int | None = None,
) -> list[Message]:
    """Send messages and return the replies that come within `timeout` seconds, each.

    Flower's own `send_and_receive` sleeps up to three seconds between looks, which would be most
    of a round; this looks soon and then ever less often.

    Args:
        grid: where the nodes are.
        messages: what to send.
        timeout: seconds to wait for the reply to a message.
        singly: fetch replies one by one, so that one that can't be unpacked harms no other; it
            is returned as an error. Nodes of a simulation run our own code and don't need it.
        at_once: how many messages may be without a reply; the others are sent as replies come.
    """
    unsent, waiting = list(messages), dict[str, _Pending]()
    replies: list[Message] = []
    soon = SINGLE_LOOK if singly else FIRST_LOOK
    pause = soon
    while unsent or waiting:
        room = len(unsent) if at_once is None else at_once - len(waiting)
        waiting |= _send(grid, unsent[:room], timeout)
        unsent = unsent[room:]
        began = time.monotonic()
        # All must come before this ends: looking for one of them at a time is enough.
        every = bool(unsent) or any(one.until <= began for one in waiting.values())
        arrived = _pull_each(grid, waiting, every) if singly else list(grid.pull_messages(waiting))
        replies += arrived
        for reply in arrived:
            waiting.pop(reply.metadata.reply_to_message_id, None)
        waiting = {name: one for name, one in waiting.items() if began < one.until}
        if waiting:
            time.sleep(max(pause, IDLE * (time.monotonic() - began)))
        pause = soon if arrived else min(1.1 * pause, LAST_LOOK)
    return replies


def _send(grid: Grid, messages: Sequence[Message], timeout: float) -> dict[str, _Pending]:
    """Send messages; by their names, what is waited for."""
    if messages:
        grid.push_messages(list(messages))
    until = time.monotonic() + timeout
    return {message.metadata.message_id: _Pending(message, until) for message in messages}


def _pull_each(grid: Grid, waiting: Mapping[str, _Pending], every: bool) -> list[Message]:
    """The replies that have arrived; one that Flower can't unpack becomes an error.

    Args:
        grid: where the nodes are.
        waiting: the questions, by name.
        every: look for all of them, and not only up to the first that is not there.
    """
    replies: list[Message] = []
    for name, asked in waiting.items():
        before = len(replies)
        try:
            with at_most(LARGEST_REPLY):
                replies += grid.pull_messages([name])
        except Exception as error:
            if isinstance(error, OSError) or type(error).__module__.split(".")[0] in NETWORK:
                raise
            reason = f"can't be unpacked ({type(error).__name__})"
            replies.append(Message(Error(code=0, reason=reason), reply_to=asked.message))
        if len(replies) == before and not every:
            break
    return replies
