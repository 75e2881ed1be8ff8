"""Whatever a client sends, it is dropped and named in one line, and the others train on."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from inprocess import InProcessGrid
from smalldata import CLASSES, FEATURES, write_records

from fedsofim.core.errors import ConfigError
from fedsofim.federation import roster as roster_module
from fedsofim.federation import server_app
from fedsofim.federation.messages import pack, unpack
from fedsofim.federation.roster import Look, Roster
from fedsofim.runs.directory import RunDir

SHAPE = (1, CLASSES, FEATURES + 1)
Content = Callable[[dict[str, Any], dict[str, Any]], RecordDict]
# Forged lines, a terminal's title, rich's and a browser's markup, a lone surrogate.
EVIL = "\x1b[31m\x1b]0;x\x07\nround 3 of 3: accuracy 99 %\r[bold red]<script>\ud800" + "x" * 10_000


def owners(folder: Path, n: int = 3) -> list[dict[str, Any]]:
    nodes = []
    for i in range(n):
        place = folder / f"owner{i}"
        place.mkdir()
        write_records(place / "records.npz", 60 + 10 * i, seed=i)
        node = {"partition-id": i, "data": str(place / "records.npz"), "classes": CLASSES}
        nodes.append({**node, "state": str(place), "epsilon": 10.0, "delta": 1e-5})
    return nodes


def serve(
    folder: Path, *, reply: Content | None = None, hello: Content | None = None, more: str = ""
) -> RunDir:
    """Three rounds with three owners, of whom client 0 answers as it pleases."""

    def tamper(question: Message, honest: Message) -> list[Message]:
        arrays, said = unpack(honest.content)
        change = hello if "population" in unpack(question.content)[1] else reply
        mine = said.get("client") == 0 or said.get("clients") == [0]
        if change is None or not mine:
            return [honest]
        return [Message(change(arrays, said), reply_to=question)]

    data = f"dataset=owners dataset.classes={CLASSES} partition.clients=3"
    settings = f"strategy=fedgd rounds=3 {data}"
    limits = "engine.wait=0.2 engine.timeout=0.2 engine.min_clients=2"
    overrides = f"{settings} {limits} output.dir={folder / 'run'} {more}"
    return server_app.serve(InProcessGrid(owners(folder), tamper), overrides=overrides)


def raw(data: bytes, shape: tuple[int, ...] = SHAPE, dtype: str = "float32") -> FlowerArray:
    return FlowerArray(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)


def header(*shape: int, descr: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


def carrying(array: FlowerArray, **more: FlowerArray) -> Content:
    return lambda arrays, said: RecordDict(
        {"arrays": ArrayRecord({"release": array, **more}), "config": ConfigRecord(said)}
    )


def saying(**values: Any) -> Content:
    return lambda arrays, said: pack(arrays, {**said, **values})


def sending(change: Callable[[Any], Any]) -> Content:
    return lambda arrays, said: pack({"release": change(arrays["release"])}, said)


GOOD = np.zeros(SHAPE, np.float32)
REPLIES: dict[str, Content] = {
    "empty bytes": carrying(raw(b"")),
    "an archive": carrying(raw(archive())),
    "a broken archive": carrying(raw(b"PK\x03\x04xxxxxxxx")),
    "a header of 4 TB": carrying(raw(header(1 << 40))),
    "a header of 4 TB, announced": carrying(raw(header(1 << 40), (1 << 40,))),
    "a header of the right shape and no data": carrying(raw(header(*SHAPE))),
    "a gigabyte more than announced": carrying(raw(header(*SHAPE) + bytes(1 << 24))),
    "negative sides": carrying(raw(header(-1, -3, 7), (-1, -3, 7))),
    "a pickle": carrying(raw(b"\x80\x04K\x01.")),
    "objects": carrying(raw(header(*SHAPE, descr="|O"), SHAPE, "object")),
    "a structured type": carrying(raw(header(*SHAPE), SHAPE, "f4,f4")),
    "texts": carrying(FlowerArray(np.zeros(SHAPE, "S4"))),
    "a tensor": carrying(FlowerArray(dtype="float32", shape=SHAPE, stype="torch.Tensor", data=b"")),
    "more arrays than were asked for": carrying(FlowerArray(GOOD), extra=FlowerArray(GOOD)),
    "no records": lambda arrays, said: RecordDict(),
    "a record of another kind": lambda arrays, said: RecordDict(
        {"arrays": MetricRecord({"a": 1}), "config": ConfigRecord(said)}
    ),
    "charged inf": saying(charged=float("inf")),
    "charged nan": saying(charged=float("nan")),
    "charged 1e9": saying(charged=1e9),
    "charged the whole plan at once": lambda arrays, said: pack(
        arrays, {**said, "charged": 3.0 + 1e-6}
    ),
    "charged -1": saying(charged=-1.0),
    "charged in words": saying(charged="much"),
    "not a number": sending(lambda r: r * np.nan),
    "infinite": sending(lambda r: r + np.inf),
    "beyond all numbers": sending(lambda r: r * 0 + np.float32(1e30)),
    "10**18 records": saying(sizes=[10**18]),
    "one record more": saying(sizes=[61]),
    "-1 records": saying(sizes=[-1]),
    "records in words": saying(sizes="many"),
    "records that are true": saying(sizes=[True]),
    "someone else": saying(clients=[1]),
    "everyone": saying(clients=[0, 1, 2]),
    "another round": saying(round=10**15),
    "a round in words": saying(round=EVIL),
    "an evil error": saying(error=EVIL),
}


def check_texts(told: str) -> None:
    """No line was forged, and nothing steers a terminal, rich or a browser."""
    assert "\x1b" not in told.replace("\x1b[0m", "").replace("\x1b[92m", "").replace("\x1b[93m", "")
    assert "\nround 3 of 3: accuracy 99" not in told
    assert "[bold red]" not in told
    assert "<script>" not in told
    assert max(map(len, told.splitlines())) < 500


@pytest.mark.parametrize("name", REPLIES)
def test_a_bad_reply_harms_its_sender_alone(
    name: str, tmp_path: Path, honest: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    place = serve(tmp_path, reply=REPLIES[name])
    rows = place.metrics()
    assert len(rows) == 3
    for row in rows:
        (dropped,) = row["dropped"]
        assert dropped.startswith("client 0: ")
        assert len(dropped) < 300
    check_texts(caplog.text)
    check_texts("\n".join(row["dropped"][0] for row in rows))
    assert rows[-1]["epsilon"] == honest.metrics()[-1]["epsilon"]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDir]:
    with pytest.MonkeyPatch.context() as patch:  # before the state of the first test is set
        patch.setenv("FEDSOFIM_STATE", str(tmp_path_factory.mktemp("state")))
        yield serve(tmp_path_factory.mktemp("honest"))


def test_an_honest_run_drops_nobody(honest: RunDir) -> None:
    assert [row.get("dropped") for row in honest.metrics()] == [None] * 3


HELLOS: dict[str, Content] = {
    "features inf": saying(features=float("inf")),
    "features nan": saying(features=float("nan")),
    "features 10**9": saying(features=10**9),
    "other features than the others": saying(features=5),
    "features in words": saying(features=EVIL),
    "classes 2": saying(classes=2),
    "size -5": saying(size=-5),
    "size 0": saying(size=0),
    "size 10**18": saying(size=10**18),
    "client 10**18": saying(client=10**18),
    "client -1": saying(client=-1),
    "client in words": saying(client=EVIL),
    "a player, not an owner": saying(owner=False),
    "owner in words": saying(owner="yes"),
    "nothing": lambda arrays, said: RecordDict(),
    "no values": lambda arrays, said: pack({}, {}),
    "an evil error": lambda arrays, said: pack({}, {"error": EVIL, "client": 0, "refused": False}),
    "an evil refusal": lambda arrays, said: pack({}, {"error": EVIL, "client": 0, "refused": True}),
    "an evil name": lambda arrays, said: pack({}, {"error": "no", "client": EVIL}),
}


@pytest.mark.parametrize("name", HELLOS)
def test_a_bad_hello_harms_its_sender_alone(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = serve(tmp_path, hello=HELLOS[name])
    assert len(place.metrics()) == 3
    assert np.load(place.path / "model.npz")["theta"].shape == (CLASSES, FEATURES + 1)
    check_texts(caplog.text)


@pytest.mark.parametrize("hello", [saying(size=-5), lambda a, s: pack({}, {"error": EVIL})])
def test_without_a_quorum_the_run_ends_in_one_line(hello: Content, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"waited 0.2 s in vain for client 0 of 3") as caught:
        serve(tmp_path, hello=hello, more="engine.min_clients=3")
    assert "\n" not in str(caught.value)
    check_texts(str(caught.value))


def test_arrays_in_a_hello_are_not_opened(tmp_path: Path) -> None:
    def hello(arrays: dict[str, Any], said: dict[str, Any]) -> RecordDict:
        return carrying(raw(b""))(arrays, said)

    assert "dropped" not in serve(tmp_path, hello=hello).metrics()[0]


def test_a_size_can_not_be_more_than_the_server_believes(tmp_path: Path) -> None:
    place = serve(tmp_path, hello=saying(size=1000), more="engine.max_records=100")
    assert place.read_json("partition.json")["sizes"] == [None, 70, 80]


def test_an_owner_is_held_to_what_it_said_first() -> None:
    roster = Roster(clients=3, job="{}", sizes={0: 60})
    grid = InProcessGrid([{}])

    def told(size: int) -> str:
        values = {"owner": True, "client": 0, "size": size, "features": 6, "classes": 3}
        grid.tamper = lambda question, reply: [Message(pack({}, values), reply_to=question)]
        roster._greet(Look(grid))
        return roster.problems.get(1000, "")

    assert told(61) == "client 0: has 61 records, and said 60 before"
    roster._next.clear()
    assert told(60) == ""


def test_a_client_that_comes_back_as_others_refuses_for_itself_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each refusal once counted for another client: a few of one client's ended the run."""
    monkeypatch.setattr("fedsofim.federation.roster.LOOK", 0.001)

    class Changing(InProcessGrid):
        looks = 0

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            hostile = 5000 + self.looks // 5
            ids = [1, hostile] if self.looks < 60 else [1, 2, hostile]  # client 1 is late
            self.nodes |= {node: {} for node in ids}
            return ids

    def tamper(question: Message, reply: Message) -> list[Message]:
        node = question.metadata.dst_node_id
        good = {"owner": True, "client": node - 1, "size": 60, "features": 6, "classes": 3}
        bad = {"error": f"no {node}", "client": 2, "refused": True}
        return [Message(pack({}, good if node < 3 else bad), reply_to=question)]

    roster, grid = Roster(clients=3, job="{}"), Changing([], tamper)
    assert roster.wait(grid, 3, 20, enough=2)
    assert roster.here(grid) == {0, 1}
    assert len(roster.problems) <= 1  # what those who left said is forgotten


def test_what_a_client_overspends_ends_its_own_part(
    tmp_path: Path, honest: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    """It lost its releases and charged itself twice: the others go on, epsilon is the worst."""
    place = serve(tmp_path, reply=lambda a, s: pack(a, {**s, "charged": s["charged"] + 1}))
    rows = place.metrics()
    assert "Client 0 is asked no more: it has charged itself 3 releases" in caplog.text
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[0]["epsilon"] == honest.metrics()[1]["epsilon"]


def test_a_node_that_never_answers_holds_up_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked ever less often, but at once again when it is needed."""
    monkeypatch.setattr(roster_module, "GREETING", 0.0)
    monkeypatch.setattr(roster_module, "AGAIN", 0.0)
    grid, roster = InProcessGrid([{}], lambda question, reply: []), Roster(clients=3, job="{}")
    roster._greet(Look(grid), needed=False)
    assert "did not say who it is" in roster.problems[1000]
    roster._silent[1000] += 60
    roster._greet(Look(grid), needed=False)
    assert len(grid.asked) == 1
    roster._greet(Look(grid), needed=True)
    assert len(grid.asked) == 2


def test_of_many_who_are_not_there_twenty_are_named_and_nodes_are_asked_for_once_a_look():
    looks = []

    class Counting(InProcessGrid):
        def get_node_ids(self):
            looks.append(0)
            return super().get_node_ids()

    def owner(question: Message, reply: Message) -> list[Message]:
        i = (1000 - question.metadata.dst_node_id) // 7
        values = {"owner": True, "client": i, "size": 60, "features": 6, "classes": 3}
        return [Message(pack({}, values), reply_to=question)]

    grid, roster = Counting([{}] * 30, owner), Roster(clients=60, job="{}")
    assert roster.wait(grid, 30, 0.0)
    assert len(looks) == 2  # before they are greeted, and afterwards
    named = ", ".join(str(i) for i in range(30, 50))
    assert roster.missing(grid) == f"client {named} and 10 others of 60"
