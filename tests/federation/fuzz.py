"""Mutated messages at the server's strategy and at an owner's handler, in a process of its own.

    python tests/federation/fuzz.py server 100000 0
    python tests/federation/fuzz.py client 2000 0

Prints, as JSON, how many were taken and turned away and the most memory the process ever took.
Any exception that gets out ends it.
"""

import json
import logging
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from inprocess import InProcessGrid
from smalldata import CLASSES, FEATURES, write_records

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.rate import Rate
from fedsofim.federation import roster
from fedsofim.federation.messages import HELLO, RELEASE, exchange, pack, undecoded
from fedsofim.federation.quorum import Quorum
from fedsofim.federation.roster import Look, Member, Roster
from fedsofim.federation.strategy import RuleStrategy
from fedsofim.strategies.fedgd import FedGD
from fedsofim.strategies.rule import start

NASTY: list[Any] = [
    *(0, 1, -1, 2**31, 2**63 - 1, -(2**63), 10**5000, 0.5, -0.0, 1e308, float("inf"), float("nan")),
    *("", "x" * 100_000, "\x1b[2J\n[red]", "\ud800", b"", b"\x00" * 1000, True, False),
    *([], [0], [0] * 10_000, [-1], [2**63 - 1] * 2, [float("nan")], ["a", "b"], [True]),
]
SHAPES = [(), (0,), (1 << 40,), (-1, 7), (1, CLASSES, FEATURES + 1), (2, 3, 4), (1,) * 40]
TYPES = ["float32", "float64", "object", "O", "V1000000", "f4,f4", "int64", "", "\x00", "S9999"]
RELEASED = np.full((1, CLASSES, FEATURES + 1), 0.25, np.float32)


class Mutator:
    """Small random changes of valid contents."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def data(self, data: bytes) -> bytes:
        """Flip, cut, repeat or replace bytes."""
        pick, out = self.random, bytearray(data)
        for _ in range(pick.choice([1, 1, 2, 8])):
            kind = pick.randrange(5)
            at = pick.randrange(len(out) + 1)
            if kind == 0 and out:
                out[at % len(out)] ^= 1 << pick.randrange(8)
            elif kind == 1:
                del out[at : at + pick.choice([1, 4, 10**6])]
            elif kind == 2:
                out[at:at] = pick.randbytes(pick.choice([1, 16, 5000]))
            elif kind == 3 and out:
                out[at % len(out)] = pick.choice(b"0123456789-.,()[]{}'\"\n")
            else:
                out[:8] = pick.choice([b"PK\x03\x04", b"\x80\x04", b"\x93NUMPY\x02\x00", b""])
        return bytes(out)

    def array(self, array: Array) -> Array:
        """Change what an array is, or what it is said to be."""
        parts = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
        changes = {"dtype": TYPES, "shape": SHAPES, "stype": ["torch.Tensor", ""]}
        for name, options in changes.items():
            if self.random.random() < 0.15:
                parts[name] = self.random.choice(options)
        data = self.data(array.data) if self.random.random() < 0.7 else array.data
        return Array(**parts, data=data)

    def content(self, content: RecordDict) -> RecordDict:
        """Change some of a message's arrays and values, and which there are."""
        pick = self.random
        arrays, values = undecoded(content)
        for name in list(arrays):
            if pick.random() < 0.4:
                arrays[name] = self.array(arrays[name])
            if pick.random() < 0.05:
                arrays[pick.choice(["", "theta", "x" * 1000])] = arrays.pop(name)
        for name in list(values):
            if pick.random() < 0.15:
                values[name] = pick.choice(NASTY)
            if pick.random() < 0.03:
                del values[name]
        if pick.random() < 0.1:
            values[pick.choice(["error", "refused", "charged", "sizes"])] = pick.choice(NASTY)
        made: dict[str, Any] = {"arrays": ArrayRecord(arrays), "config": config_record(values)}
        if pick.random() < 0.03:
            made[pick.choice(["arrays", "config"])] = MetricRecord({"a": [1.0]})
        if pick.random() < 0.03:
            made.pop(pick.choice(["arrays", "config"]))
        return RecordDict(made)

    def message(self, message: Message) -> Message:
        """Change the bytes that travel, as `HttpGrid` puts them together again."""
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        for name in parts:
            if self.random.random() < 0.3:
                parts[name] = self.data(parts[name])
        made = inflate_object_from_contents(message.object_id, parts)
        assert isinstance(made, Message)
        return made


def config_record(values: dict[str, Any]) -> ConfigRecord:
    """A record of these values; Flower itself refuses lists of several types."""
    try:
        return ConfigRecord(values)
    except TypeError:
        return ConfigRecord({k: v for k, v in values.items() if not isinstance(v, list)})


class FuzzGrid(InProcessGrid):
    """Nodes that answer with mutations of an honest reply."""

    def __init__(self, nodes: int, seed: int) -> None:
        super().__init__([{}] * nodes)
        self.mutator, self.honest = Mutator(seed), RecordDict()

    def _answer(self, message: Message) -> Message:
        pick = self.mutator.random
        if pick.random() < 0.02:
            return Message(Error(code=pick.randrange(9), reason="\x1b" * 1000), reply_to=message)
        whole = pick.random() < 0.3
        content = self.honest if whole else self.mutator.content(self.honest)
        return Message(content, reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [
            self.mutator.message(reply) if self.mutator.random.random() < 0.5 else reply
            for reply in super().pull_messages(message_ids)
        ]


def check_line(told: str) -> None:
    """One short line that can go to a log."""
    assert told.isprintable(), told
    assert len(told) < 400, told


def fuzz_replies(count: int, seed: int) -> Counter[str]:
    """A strategy with one client, which answers `count` times."""
    grid, seen = FuzzGrid(1, seed), Counter[str]()
    grid.honest = pack(
        {"release": RELEASED}, {"round": 0, "clients": [0], "sizes": [60], "charged": 1.0}
    )
    quorum = Quorum(job="{}", clients=1, rounds=10**9, timeout=1e-9)
    known = Roster(clients=1, job="{}", sizes={0: 60})
    known.members[1000] = Member(True, 0, 60, FEATURES, CLASSES)
    rule = FedGD(rate=Rate(0.1))
    first = start(rule, np.zeros(RELEASED.shape[1:], np.float32))
    strategy = RuleStrategy(rule, quorum, state=first, roster=known)
    strategy._shape = RELEASED.shape[1:]
    for _ in range(count):
        strategy._state = first
        strategy._begin(0)
        strategy.refusals.clear()
        asked = strategy.configure_train(1, strategy._arrays(), ConfigRecord(), grid)
        strategy.aggregate_train(1, exchange(grid, list(asked), 1e-9, singly=True))
        assert len(strategy._parts) + len(strategy._dropped) == 1
        for told in strategy._dropped.values():
            check_line(told)
        seen["taken" if strategy._parts else "dropped"] += 1
        assert np.isfinite(strategy.state.theta).all()
    return seen


def fuzz_hellos(count: int, seed: int) -> Counter[str]:
    """A roster that is greeted `count` times."""
    grid, seen = FuzzGrid(1, seed), Counter[str]()
    said = {"owner": True, "client": 0, "size": 60, "features": FEATURES, "classes": CLASSES}
    grid.honest = pack({}, said)
    for _ in range(count):
        met = Roster(clients=3, job="{}", run="ab")
        met._greet(Look(grid))
        for told in (*met.problems.values(), met.missing(grid)):
            check_line(told)
        assert len(met.members) + len(met.problems) == 1
        seen["joined" if met.members else "turned away"] += 1
    return seen


def fuzz_requests(count: int, seed: int) -> Counter[str]:
    """An owner that is asked `count` times, for anything."""
    folder = Path(tempfile.mkdtemp())
    write_records(folder / "records.npz", 60, seed=0)
    node = {"partition-id": 0, "data": str(folder / "records.npz"), "classes": CLASSES}
    node |= {"state": str(folder), "epsilon": 10.0, "delta": 1e-5}
    grid, mutator, seen = InProcessGrid([node]), Mutator(seed), Counter[str]()
    settings = ["strategy=fedgd", "rounds=4", "dataset=owners", f"dataset.classes={CLASSES}"]
    job = parse(compose([*settings, "partition.clients=1"])).text
    theta = np.zeros(RELEASED.shape[1:], np.float32)
    for k in range(count):
        pick = mutator.random
        text = mutator.data(job.encode()).decode(errors="replace") if pick.random() < 0.2 else job
        asked = {"job": text, "run": "ab", "round": k % 4, "clients": [0], "population": 1}
        content = mutator.content(pack({"theta": theta}, asked))
        message = Message(content, 1000, pick.choice([HELLO, RELEASE]))
        grid.push_messages([message])
        (reply,) = grid.pull_messages([])
        assert not reply.has_error(), reply.error.reason  # the handler itself must not fail
        _, values = undecoded(reply.content)
        if "error" in values:
            check_line(str(values["error"]).replace("\n", " ")[:399].strip())
        seen["refused" if "error" in values else "answered"] += 1
    return seen


def main(what: str, count: int, seed: int) -> None:
    """Run one of the fuzzes, and say how it went."""
    logging.disable(logging.CRITICAL)
    roster.GREETING = 1e-9  # a mutated reply may answer another question: don't wait for it
    # What a forged header claims must not be had by luck.
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    if what == "server":
        seen = fuzz_replies(count // 2, seed) + fuzz_hellos(count - count // 2, seed)
    else:
        seen = fuzz_requests(count, seed)
    print(json.dumps({**seen, "megabytes": peak_kilobytes() // 1024}))


def peak_kilobytes() -> int:
    """The most memory that this process had; `getrusage` counts that of its parent as well."""
    status = Path("/proc/self/status")
    if status.is_file():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
