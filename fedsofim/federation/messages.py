"""What server and clients say to each other: named arrays, and a few plain values beside them.

Every message has one form, whatever the method: the server broadcasts arrays by name and asks for
something; the client answers with arrays by name, or with the reason why not.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
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
# The first where every look is a request of its own: a client's process needs a second to start,
# and on one machine looking takes from the same CPUs.
SINGLE_LOOK = 0.1
# For so many replies there is always room.
AT_LEAST = 8
# How many owners' questions are sent in one request: a SuperLink stores them all before it answers,
# some milliseconds each, and Flower waits thirty seconds for that and then sends them again.
SENT = 25
# How many owners are looked for in vain before the next pause, if others can be asked only when one
# answers.
MISSES = 16
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


class Room(NamedTuple):
    """How much may be under way, so that the replies that lie here do not grow with the clients.

    Attributes:
        sizes: numbers that the reply to each message has.
        waiting: how many numbers of replies lie here, and wait for others.
        most: how many of both there may be.
    """

    sizes: Sequence[int]
    waiting: Callable[[], int]
    most: int


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    *,
    singly: bool = False,
    at_once: int | None = None,
) -> list[Message]:
    """Send messages and return the replies that come within `timeout` seconds."""
    return list(replies_to(grid, messages, timeout, singly=singly, at_once=at_once))


def replies_to(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    *,
    singly: bool = False,
    room: Room | None = None,
    at_once: int | None = None,
) -> Iterator[Message]:
    """Send messages, and give the replies as they come, within `timeout` seconds of a question.

    Flower's own `send_and_receive` sleeps up to three seconds between looks, which would be most
    of a round; this looks soon and then ever less often.

    Args:
        grid: where the nodes are.
        messages: what to send.
        timeout: seconds to wait for replies.
        singly: fetch each reply by itself, so that one that can't be unpacked harms no other; it
            is returned as an error; and send in portions. Nodes of a simulation need neither.
        room: ask the next only when there is room for its reply; by default ask all at once.
        at_once: how many messages may be without a reply; the others are sent as replies come.
    """
    unsent = deque(zip(messages, room.sizes if room else repeat(0), strict=False))
    portion = SENT if singly else len(messages)
    waiting: dict[str, _Question] = {}
    pause = FIRST_LOOK
    while unsent or waiting:
        most = portion if at_once is None else min(portion, at_once - len(waiting))
        more = _send(grid, unsent, waiting, timeout, room, most) == portion and bool(unsent)
        now, came = time.monotonic(), False
        late = [name for name, question in waiting.items() if now > question.deadline]
        # All must come before this ends: looking for one of them at a time is enough.
        held = bool(unsent) and not more
        for reply in _arrived(grid, waiting, late, singly, MISSES if held else 1):
            waiting.pop(reply.metadata.reply_to_message_id, None)
            came = True
            yield reply
        for name in late:
            waiting.pop(name, None)
        first = FIRST_LOOK if not singly else LAST_LOOK if held or late else SINGLE_LOOK
        if waiting and not more:
            time.sleep(max(first, pause))
        pause = first if came else min(1.1 * pause, LAST_LOOK)


class _Question(NamedTuple):
    message: Message
    size: int
    deadline: float


def _send(
    grid: Grid,
    unsent: deque[tuple[Message, int]],
    waiting: dict[str, _Question],
    timeout: float,
    room: Room | None,
    most: int,
) -> int:
    """Send what there is room for the replies of, a few in any case; how many messages it was."""
    due: list[tuple[Message, int]] = []
    taken = sum(question.size for question in waiting.values())
    if room and waiting:  # else what lies here waits for one that is not under way any more
        taken += room.waiting()
    while unsent and len(due) < most:
        size = unsent[0][1]
        taken += size
        if room and taken > max(room.most, AT_LEAST * size):
            break
        due.append(unsent.popleft())
    if due:
        grid.push_messages([message for message, _ in due])
    deadline = time.monotonic() + timeout
    for message, size in due:
        waiting[message.metadata.message_id] = _Question(message, size, deadline)
    return len(due)


def _arrived(
    grid: Grid, waiting: dict[str, _Question], late: Sequence[str], singly: bool, misses: int
) -> Iterator[Message]:
    """The replies that have arrived, each forgotten here once it is given."""
    if singly:
        yield from _look(grid, waiting, late, misses)
        return
    questions = {name: question.message for name, question in waiting.items()}
    replies = deque(grid.pull_messages(questions))
    while replies:
        yield replies.popleft()


def _look(
    grid: Grid, waiting: dict[str, _Question], late: Sequence[str], misses: int
) -> Iterator[Message]:
    """The same, one by one, until `misses` lack; those who are late are looked for in any case.

    Who lacks is looked for again when all others were.
    """
    for name in late:
        yield from _fetch(grid, waiting[name].message) if name in waiting else ()
    for name in list(waiting):
        if name not in waiting:  # a grid may give more than it is asked for
            continue
        replies = _fetch(grid, waiting[name].message)
        if not replies:
            waiting[name] = waiting.pop(name)
            misses -= 1
        if not misses:
            return
        while replies:
            yield replies.pop(0)


def _fetch(grid: Grid, question: Message) -> list[Message]:
    """The reply to one question, if it is there; one that Flower can't unpack is an error."""
    try:
        with at_most(LARGEST_REPLY):
            return list(grid.pull_messages([question.metadata.message_id]))
    except Exception as error:
        if isinstance(error, OSError) or type(error).__module__.split(".")[0] in NETWORK:
            raise
        reason = f"can't be unpacked ({type(error).__name__})"
        return [Message(Error(code=0, reason=reason), reply_to=question)]
