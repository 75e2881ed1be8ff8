"""How questions are sent and replies fetched."""

import time

import pytest
from flwr.app import Error, Message
from inprocess import InProcessGrid

from fedsofim.federation import messages
from fedsofim.federation.messages import RELEASE, exchange, pack
from fedsofim.federation.questions import Questions

NODES = 7


class SlowGrid(InProcessGrid):
    """Nodes that answer when they have been looked for a few times; silent ones never do."""

    def __init__(self, silent=(), slow=3):
        super().__init__([{"partition-id": k, "num-partitions": NODES} for k in range(NODES)])
        self.silent, self.open, self.most, self.order = silent, {}, 0, []
        self.slow, self.looks = slow, 0
        self.portions = []

    def push_messages(self, sent):
        assert sent, "an empty push is a request for nothing"
        self.portions.append(len(sent))
        for message in sent:
            message.metadata.__dict__["_message_id"] = message.object_id
            self.open[message.metadata.message_id] = (message, len(self.order) % self.slow + 1)
            self.order.append(message.metadata.dst_node_id)
        self.most = max(self.most, len(self.open))
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids):
        came, self.looks = [], self.looks + 1
        for name in list(message_ids):
            message, looks = self.open[name]
            if message.metadata.dst_node_id in self.silent:
                continue
            self.open[name] = (message, looks - 1)
            if looks <= 1:
                came.append(Message(Error(code=0, reason="here"), reply_to=self.open.pop(name)[0]))
        return came


def questions(grid):
    return [Message(pack({}, {"k": k}), node, RELEASE) for k, node in enumerate(grid.nodes)]


@pytest.mark.parametrize("singly", [False, True])
@pytest.mark.parametrize("at_once", [None, 1, 3, 100])
def test_no_more_are_asked_at_once_than_allowed_and_all_answer(monkeypatch, at_once, singly):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    grid = SlowGrid()
    sent = questions(grid)
    replies = exchange(grid, sent, 60, singly=singly, at_once=at_once)
    answered = [reply.metadata.reply_to_message_id for reply in replies]
    assert sorted(answered) == sorted(message.metadata.message_id for message in sent)
    assert grid.most == min(at_once or NODES, NODES)
    assert grid.order == list(grid.nodes)


def test_who_is_silent_takes_no_time_from_those_who_are_asked_later():
    grid = SlowGrid(silent=(1000,))  # the first that is asked
    began = time.monotonic()
    replies = exchange(grid, questions(grid), 0.3, at_once=1)
    assert len(replies) == NODES - 1
    assert 0.3 <= time.monotonic() - began < 3


@pytest.mark.parametrize(("at_once", "least"), [(None, 0.1), (2, 0.25)])
def test_looking_leaves_the_machine_to_those_who_are_looked_for(monkeypatch, at_once, least):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    grid = SlowGrid()
    exchange(grid, questions(grid)[:4], 60, singly=True, at_once=at_once)
    assert slept[0] >= least  # with others to ask, all that are asked are looked for each time


@pytest.mark.parametrize("singly", [False, True])
def test_owners_are_asked_in_portions_without_a_pause_between_them(monkeypatch, singly):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(messages, "SENT", 3)
    grid = SlowGrid(slow=1)
    replies = exchange(grid, questions(grid), 60, singly=singly)
    assert len(replies) == NODES
    assert grid.portions == ([3, 3, 1] if singly else [NODES])
    assert not slept  # a reply is there as soon as it is looked for


def test_many_who_are_silent_do_not_take_the_looks_of_those_who_answer(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: 0.3 * len(slept))
    monkeypatch.setattr(messages, "MISSES", 2)
    grid = SlowGrid(silent=(1000, 993, 986, 979), slow=1)
    replies = exchange(grid, questions(grid), 60, singly=True, at_once=NODES - 1)
    assert len(replies) == NODES - 4
    # Two in vain before each pause; and when the time is up, each silent one once more.
    assert grid.looks <= NODES - 4 + 2 * len(slept) + 4


def test_who_was_asked_is_known_by_the_name_of_the_question():
    grid, asked = SlowGrid(), Questions()
    for k, message in enumerate(questions(grid)):
        asked.append((message, [k]))
    assert asked.asked_by("") is None
    grid.push_messages([message for message, _ in asked[:3]])
    names = [message.metadata.message_id for message, _ in asked[:3]]
    assert [asked.asked_by(name) for name in (*names, "another")] == [[0], [1], [2], None]
    grid.push_messages([message for message, _ in asked[3:]])
    assert asked.asked_by(asked[-1][0].metadata.message_id) == [NODES - 1]


def test_replies_are_looked_for_one_at_a_time(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    grid = SlowGrid()
    exchange(grid, questions(grid), 60, singly=True)
    assert grid.looks <= 3 * NODES  # each is there when it has been looked for three times


def test_when_the_time_is_up_all_are_looked_for_once_more():
    grid = SlowGrid(silent=(1000,), slow=1)  # the first that is asked
    replies = exchange(grid, questions(grid), 0.3, singly=True)
    assert len(replies) == NODES - 1
