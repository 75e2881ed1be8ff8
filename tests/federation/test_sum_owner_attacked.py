"""A server with a colluding client against owners that add to sums: what it gets is charged."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sumowners import Talk, charges_of, make_owners, refused

from fedsofim.config.schema import parse
from fedsofim.federation.answered import Answered
from fedsofim.privacy.refusals import Refusal
from fedsofim.secagg import wire
from fedsofim.secagg.errors import Reason
from fedsofim.secagg.stages import Stage

FIVE = ("partition.clients=5", "strategy=fedgd", "privacy.trust=aggregate", "aggregation=size")
Values = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("when", [2, 3, 4])
def test_a_session_is_charged_on_the_terms_it_began_with(
    when: int, tmp_path: Path, values: Values
) -> None:
    """Keys and shares of a sum of two clients, one the server's; then noise as if there were five.

    Before its first charge a run has no terms in the ledger, so the session must keep its own.
    """
    owners = make_owners(tmp_path, 5, honest=3)
    few = ("participation=0.6", "secagg.threshold=2")
    talk = Talk(owners, parse(values(*FIVE, *few)))
    many = parse(values(*FIVE, "secagg.threshold=4", "secagg.colluders=1"))
    talk.requests = talk.server.open([0, 1])
    for _ in range(when):
        talk.stage()
    charged = charges_of(owners[0])
    said = talk.ask(0, job=many.text)
    assert "answers" not in said
    assert refused(said)
    assert charges_of(owners[0]) == charged


def test_a_session_is_of_one_round(tmp_path: Path, values: Values) -> None:
    """Noise of a stage and of a round is of different size: no sum may mix them."""
    talk = Talk(make_owners(tmp_path, 5, honest=4), parse(values(*FIVE, "rounds=3")))
    talk.stage()
    said = talk.ask(0, round=1, rounds=[1])
    assert Reason.SESSION in refused(said)
    assert not charges_of(talk.owners[0])


def test_all_who_add_to_a_tree_are_at_the_same_leaf(tmp_path: Path, values: Values) -> None:
    """A first session that one client is left out of, and its tree would be a leaf behind."""
    config = parse(values(*FIVE, "strategy=ftrl"))
    owners = make_owners(tmp_path, 5, honest=4)
    first = Talk(owners, config)
    first.stage()
    for i in range(1, 5):
        assert not refused(first.ask(i))
    for t, right in ((2, []), (0, [0]), (1, range(5))):
        later = Talk(owners, config, t=t)
        later.stage()
        answered = [i for i in range(5) if not refused(later.ask(i))]
        assert answered == list(right)


@pytest.mark.parametrize("stage", list(Stage))
def test_an_owner_whose_files_were_put_back_answers_no_stage_twice(
    stage: Stage, tmp_path: Path, values: Values
) -> None:
    """Else it would sign a second list, or add other noise under the same masks."""
    owners = make_owners(tmp_path, 5, honest=3)
    talk = Talk(owners, parse(values(*FIVE, "secagg.threshold=4")))
    while talk.server.stage != stage:
        talk.stage()
    place = Path(owners[0]["state"])
    before = {file: file.read_bytes() for file in place.glob("*.sum")}
    given = talk.ask(0)["answers"]
    assert talk.ask(0)["answers"] == given
    for file in place.glob("*.sum"):
        file.unlink()
    for file, content in before.items():
        file.write_bytes(content)
    charged = charges_of(owners[0])
    assert Refusal.LOST in refused(talk.ask(0))
    assert charges_of(owners[0]) == charged


def test_a_second_list_of_survivors_is_not_signed_after_a_snapshot(
    tmp_path: Path, values: Values
) -> None:
    owners = make_owners(tmp_path, 5, honest=3)
    talk = Talk(owners, parse(values(*FIVE, "secagg.threshold=4")))
    for _ in range(3):
        talk.stage()
    (file,) = Path(owners[0]["state"]).glob("*.sum")
    before = file.read_bytes()
    assert not refused(talk.ask(0))
    file.write_bytes(before)
    other = wire.bitmap(range(5), [0, 1, 2, 3])
    words = bytes([Stage.SIGN]) + wire.join([talk.server.session.name, other])
    assert Refusal.LOST in refused(talk.ask(0, words))


def test_a_torn_note_is_no_answer(tmp_path: Path) -> None:
    notes = Answered(tmp_path / "made" / "notes")
    assert not notes.knows("ab", "SIGN")
    notes.note("ab", "SIGN")
    with open(notes.path, "ab") as file:
        file.write(b"\ncd SI")  # a power cut
    assert notes.knows("ab", "SIGN")
    assert not notes.knows("cd", "SIGN")
    notes.note("ef", "SIGN")
    assert notes.knows("ef", "SIGN")
    assert not notes.knows("f", "SIGN")


def test_notes_keep_their_name(tmp_path: Path) -> None:
    for left in (None, b"", b"\n", b"\nab"):  # by a full disk
        notes = Answered(tmp_path / repr(left))
        if left is not None:
            notes.path.write_bytes(left)
        name = notes.name
        notes.note("cd", "SIGN")
        assert name
        assert (notes.name, Answered(notes.path).name) == (name, name)
    assert Answered(tmp_path / "another").name != Answered(tmp_path / "None").name


def test_two_runs_at_once_do_not_end_each_other(tmp_path: Path, values: Values) -> None:
    """The first charge of one run comes while another has keys, and no charge yet."""
    owners, config = make_owners(tmp_path, 5, honest=4), parse(values(*FIVE))
    one, other = Talk(owners, config, run="aa"), Talk(owners, config, run="bb")
    other.stage()
    for talk in (one, one, other):
        talk.stage()
    assert one.server.result is not None
    assert other.server.result is not None


def test_a_session_outlives_a_clock_that_is_put_back(tmp_path: Path, values: Values) -> None:
    owners, config = make_owners(tmp_path, 5, honest=4), parse(values(*FIVE, "rounds=9"))
    for t in range(4):
        before = Talk(owners, config, t=t)
        before.stage()
        before.stage()
    later = time.time() + 3600
    for file in tmp_path.glob("owner*/run-*.sum"):
        os.utime(file, (later, later))
    now, ahead = Talk(owners, config, t=4), Talk(owners, config, t=5)
    for talk in (now, ahead, now, ahead):
        talk.stage()
    assert now.server.result is not None
    assert ahead.server.result is not None


@pytest.mark.parametrize("stage", [Stage.SHARE, Stage.SIGN, Stage.UNMASK])
def test_a_session_stays_on_the_machine_where_it_began(
    stage: Stage, tmp_path: Path, values: Values, monkeypatch: pytest.MonkeyPatch, inside: Any
) -> None:
    """A copy from before an answer has the newest ledger, if nothing was charged for the answer."""
    owners = make_owners(tmp_path, 5, honest=4)
    first = Talk(owners, parse(values(*FIVE, "secagg.threshold=4")))
    talk = Talk(owners, first.config, t=1)
    hello = talk.requests[0]
    for _ in range(3):
        first.stage()
    while talk.server.stage != stage:
        talk.stage()
    (file,) = Path(owners[0]["state"]).glob(f"*{talk.name}*.sum")
    before = file.read_bytes()
    assert not refused(talk.ask(0))
    file.write_bytes(before)
    monkeypatch.setenv("FEDSOFIM_STATE", str(tmp_path / "another machine"))
    assert inside("ledger", "adopt", owners[0]["state"]).returncode == 0
    assert Reason.STAGE in refused(talk.ask(0))
    assert not refused(talk.ask(0, hello))  # with other keys: what was said before is void
    assert (Reason.KEYS if stage == Stage.SHARE else Reason.STAGE) in refused(talk.ask(0))
