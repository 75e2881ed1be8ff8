"""Owners that add to sums: a hostile server at every message, and the ledger behind it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from inprocess import InProcessGrid
from smalldata import CLASSES
from sumowners import Talk, charges_of, ledger_of, make_owners, refused

from fedsofim.clients.gradient import Gradient
from fedsofim.config.schema import Config, parse
from fedsofim.core.errors import ConfigError
from fedsofim.federation import server_app
from fedsofim.federation.messages import undecoded
from fedsofim.privacy.accounting import epsilon_of
from fedsofim.privacy.refusals import Refusal
from fedsofim.runs.directory import RunDir
from fedsofim.secagg import wire
from fedsofim.secagg.client import answer
from fedsofim.secagg.errors import Reason
from fedsofim.secagg.session import Policy
from fedsofim.secagg.stages import Stage
from fedsofim.secagg.state import Member

TOGETHER = ("privacy.trust=aggregate", "aggregation=size")
FIVE = ("partition.clients=5", "strategy=fedgd", *TOGETHER, "secagg.threshold=3")


def serve(
    grid: InProcessGrid, place: Path, data_file: Path, clients: int, *overrides: str
) -> RunDir:
    given = [
        *("dataset=npz", f"dataset.path={data_file}", f"partition.clients={clients}", "rounds=3"),
        *("engine.wait=0.2", "engine.timeout=0.2", f"output.dir={place / 'run'}"),
        *TOGETHER,
    ]
    return server_app.serve(grid, overrides=" ".join([*given, *overrides]))


@pytest.fixture
def talk(tmp_path: Path, values: Callable[..., dict[str, Any]]) -> Callable[..., Talk]:
    """Five owners, who assume that all others are honest; threshold three."""
    owners = make_owners(tmp_path, 5, honest=4)

    def begin(*overrides: str, **given: Any) -> Talk:
        return Talk(owners, parse(values(*FIVE, *overrides)), **given)

    return begin


@pytest.mark.parametrize(
    "more",
    [
        ("strategy=sofim",),
        ("strategy=fedfc", "secagg.threshold=2"),
        ("strategy=ftrl",),
        ("strategy=ridge", "transform.radius=4", "rounds=1"),
        ("strategy=fedgd", "transform=private", "transform.radius=10", "engine.min_clients=2"),
    ],
    ids=lambda more: more[0],
)
def test_owners_that_trust_each_other_charge_what_the_plan_says(
    more: tuple[str, ...], tmp_path: Path, data_file: Path
) -> None:
    owners = make_owners(tmp_path, 3, honest=2)
    place = serve(InProcessGrid(owners), tmp_path, data_file, 3, *more)
    spent = place.metrics()[-1]["epsilon"]
    assert spent == pytest.approx(10)
    for owner in owners:
        assert ledger_of(owner).epsilon() == pytest.approx(spent, rel=1e-6)


def test_an_owner_charges_by_what_it_assumes_itself(tmp_path: Path, values: Any) -> None:
    """Four others of whom three are honest, of any four that are left: its noise and two more's.

    With more colluders than a run is for, a server has two lists of survivors and sees one client:
    then nobody's noise counts but its own, unless nobody may vanish and there is no list.
    """
    cases = [(4, 0, 4, 4), (4, 0, 3, 1), (4, 1, 3, 3), (4, 1, 2, 1), (4, 1, 0, 1), (5, 0, 3, 4)]
    for k, (threshold, colluders, honest, sharers) in enumerate(cases):
        given = (f"secagg.threshold={threshold}", f"secagg.colluders={colluders}")
        config = parse(values(*FIVE, *given))
        plan = config.plan()
        assert plan.sharers == threshold - colluders
        place = tmp_path / str(k)
        owners = make_owners(place, 5, honest=honest, epsilon=1e4, seed=10 * k)
        talk = Talk(owners, config)
        for _ in range(3 if config.sharing.recover else 2):
            talk.stage()
        alone = 2 / plan.noise_multiplier * np.sqrt(plan.sharers / sharers)  # one round, no stage
        assert ledger_of(owners[0]).epsilon() == pytest.approx(epsilon_of(alone, 1e-5), rel=1e-6)


def test_an_owner_that_assumes_nothing_refuses_at_the_door(tmp_path: Path, values: Any) -> None:
    talk = Talk(make_owners(tmp_path, 5), parse(values(*FIVE)))
    assert refused(talk.hello(0)) == Refusal.BUDGET
    assert "answers" not in Talk(talk.owners, talk.config).ask(0) or not charges_of(talk.owners[0])


def test_without_the_others_keys_nothing_is_added(
    tmp_path: Path, data_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owners = make_owners(tmp_path, 3)
    for owner in owners:
        del owner["peers"]
    with pytest.raises(ConfigError, match=str(Refusal.UNPROTECTED)):
        serve(InProcessGrid(owners), tmp_path, data_file, 3)
    assert "no file of --peers" in caplog.text
    assert not any(map(charges_of, owners))


def test_honest_others_must_be_known_by_their_keys(tmp_path: Path) -> None:
    from fedsofim.config.build import build
    from fedsofim.federation.node import Node

    (owner, *_) = make_owners(tmp_path, 3, honest=3)
    node = build(Node, {key.replace("-", "_"): value for key, value in owner.items()}, "")
    with pytest.raises(ConfigError, match="names 2 others"):
        node.check_peers()


def spy_on_sums(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Any]]:
    """What each client adds, before it is masked."""
    added: dict[int, list[Any]] = {}
    contribute = Gradient.contribute

    def spying(self: Gradient, received: Any, clients: Any, *rest: Any) -> Any:
        sums, after = contribute(self, received, clients, *rest)
        for client, own in zip(clients, sums, strict=True):
            added.setdefault(client.id, []).append(own.copy())
        return sums, after

    monkeypatch.setattr(Gradient, "contribute", spying)
    return added


def test_nothing_that_the_server_is_sent_or_keeps_holds_a_single_release(
    tmp_path: Path, data_file: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, caplog: Any
) -> None:
    added, sent = spy_on_sums(monkeypatch), []

    def listen(message: Any, reply: Any) -> list[Any]:
        arrays, values = undecoded(reply.content)
        sent.append(b"".join(array.data for array in arrays.values()) + repr(values).encode())
        sent.extend(words for words in values.get("answers", []))
        return [reply]

    owners = make_owners(tmp_path, 5, honest=4)
    grid = InProcessGrid(owners, listen)
    place = serve(grid, tmp_path, data_file, 5, "strategy=fedgd", "secagg.threshold=3")
    files = [file.read_bytes() for file in place.path.rglob("*") if file.is_file()]
    logs = [capfd.readouterr().out.encode(), caplog.text.encode()]
    assert sum(map(len, added.values())) == 15
    for sums in added.values():
        for own in sums:
            forms = [own.astype(kind).tobytes() for kind in ("<i8", "<f8", "<f4")]
            numbers = [str(int(number)).encode() for number in own.ravel() if abs(number) > 1e9]
            assert len(numbers) > 15
            for seen in (*sent, *files, *logs):
                assert not any(form in seen or form[:16] in seen for form in forms)
                assert not any(number in seen for number in numbers)


def test_the_total_is_the_plain_sum_of_the_survivors(
    talk: Callable[..., Talk], monkeypatch: pytest.MonkeyPatch
) -> None:
    added, now = spy_on_sums(monkeypatch), talk()
    now.stage()
    now.stage(4)
    now.stage(3)
    now.stage()
    now.stage()
    result = now.server.result
    assert result is not None
    assert result.survivors == (0, 1, 2)
    plain = sum(added[i][0] for i in range(3))
    np.testing.assert_array_equal(result.total.reshape(plain.shape), plain)


@pytest.mark.parametrize("last", range(5))
def test_clients_may_vanish_in_every_stage(
    last: int, tmp_path: Path, data_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second round on client 1 says nothing from some stage on."""
    added, words = spy_on_sums(monkeypatch), []

    def vanish(message: Any, reply: Any) -> list[Any]:
        values = undecoded(message.content)[1]
        if values.get("clients") != [1]:
            return [reply]
        words.extend((t, w[:1]) for t, w in zip(values["rounds"], values["words"], strict=True))
        stage = values["words"][0][0]
        return [reply] if values["round"] == 0 or stage <= last else []

    owners = make_owners(tmp_path, 5, honest=4)
    given = ("strategy=fedgd", "secagg.threshold=3", "engine.max_repeats=0")
    place = serve(InProcessGrid(owners, vanish), tmp_path, data_file, 5, *given)
    rows = place.metrics()
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert not rows[0].get("dropped")
    assert any("client 1" in told for told in rows[1]["dropped"])
    assert len(added[0]) == 3


def test_too_few_are_refused_and_what_was_released_stays_charged(
    tmp_path: Path, data_file: Path
) -> None:
    def vanish(message: Any, reply: Any) -> list[Any]:
        values = undecoded(message.content)[1]
        masked = values.get("words", [b"\0"])[0][0] >= Stage.MASK
        return [] if masked and values["clients"][0] > 1 and values["round"] == 1 else [reply]

    owners = make_owners(tmp_path, 5, honest=4)
    given = ("settings=published", "strategy=fedgd", "secagg.threshold=3", "engine.max_repeats=1")
    with pytest.raises(ConfigError, match="round 2: MASK: only 2 clients answered, 3 are needed"):
        serve(InProcessGrid(owners, vanish), tmp_path, data_file, 5, *given)
    assert [charges_of(owner) for owner in owners] == [2] * 5


def test_skipping_goes_on_after_a_lost_round(tmp_path: Path, data_file: Path) -> None:
    def vanish(message: Any, reply: Any) -> list[Any]:
        values = undecoded(message.content)[1]
        return [] if values.get("clients") == [2] and values["round"] == 1 else [reply]

    owners = make_owners(tmp_path, 3, honest=2)
    grid = InProcessGrid(owners, vanish)
    place = serve(grid, tmp_path, data_file, 3, "strategy=fedgd", "engine.on_missing=skip")
    rows = place.metrics()
    assert [row.get("skipped", False) for row in rows] == [False, True, False]


def test_a_plain_release_is_never_made_in_such_a_run(talk: Callable[..., Talk]) -> None:
    now = talk()
    message = now.message(0, b"")
    for key in ("rounds", "sessions", "words"):
        del message.content["config"][key]
    now.grid.push_messages([message])
    (reply,) = now.grid.pull_messages([])
    arrays, said = undecoded(reply.content)
    assert not arrays
    assert "sums alone" in refused(said)
    assert not charges_of(now.owners[0])


@pytest.mark.parametrize(
    "other",
    [
        ("privacy.trust=server",),
        ("secagg.threshold=4",),
        ("secagg.colluders=0", "secagg.threshold=5"),
        ("privacy.clip=9",),
        ("rounds=5",),
    ],
    ids=str,
)
def test_a_run_keeps_the_terms_it_began_with(
    other: tuple[str, ...], talk: Callable[..., Talk]
) -> None:
    now = talk()
    for _ in range(3):
        now.stage()
    charged = charges_of(now.owners[0])
    assert charged == 1
    later = talk(*other) if other[0] != "privacy.trust=server" else None
    if later is None:
        job = json.dumps(
            {
                **json.loads(now.config.text),
                "privacy": {**json.loads(now.config.text)["privacy"], "trust": "server"},
            }
        )
        said = now.ask(0, job=job, round=1)
    else:
        said = later.ask(0)
    assert refused(said) == Refusal.TERMS
    assert charges_of(now.owners[0]) == charged


def test_a_lower_threshold_than_agreed_is_another_session(talk: Callable[..., Talk]) -> None:
    now = talk("secagg.threshold=4")
    weaker = now.server.session._replace(threshold=3)
    words = bytes([Stage.ADVERT]) + weaker.encode()
    assert Reason.SESSION in refused(now.ask(0, words)) or Reason.THRESHOLD in refused(
        now.ask(0, words)
    )
    assert not charges_of(now.owners[0])


def test_swapped_keys_are_noticed(talk: Callable[..., Talk]) -> None:
    """The server takes part itself, in the place and under the number of client 1."""
    now, own = talk(), ec.generate_private_key(ec.SECP384R1())
    session = now.server.session
    false = Member(1, own, now.server.keys, Policy(session.threshold), session)
    now.server.keys = {**now.server.keys, 1: own.public_key()}
    for i in range(5):
        words = answer(b"", now.requests[1], false)[1] if i == 1 else now.ask(i)["answers"][0]
        assert now.server.take(i, words) is None
    now.requests = now.server.close()
    for i in (0, 2, 3, 4):
        assert Reason.KEYS in refused(now.ask(i))
        assert not charges_of(now.owners[i])


def test_who_is_alive_is_not_also_gone(talk: Callable[..., Talk]) -> None:
    """After one list of survivors was signed, another is refused, and so is unmasking by it."""
    now = talk()
    for _ in range(3):
        now.stage()
    signed = now.requests[0]
    assert not refused(now.ask(0))
    roster = list(range(5))
    fewer = [*wire.split(signed[1:])[:1], wire.bitmap(roster, [0, 1, 2])]
    other = bytes([Stage.SIGN]) + wire.join(fewer)
    assert Reason.AGAIN in refused(now.ask(0, other))
    now.stage()
    lists = wire.split(now.requests[0][1:])
    few = wire.integers(wire.read_integers(lists[1])[:2])
    short = bytes([Stage.UNMASK]) + wire.join([lists[0], few, *lists[2:]])
    said = now.ask(0, short)
    assert refused(said)
    assert "answers" not in said


def test_the_same_words_get_the_same_answer_for_free(talk: Callable[..., Talk]) -> None:
    now = talk()
    now.stage()
    now.stage()
    first, now.theta = now.ask(0), now.theta + 1
    again = now.ask(0)  # other parameters change nothing: the session has one vector
    assert first["answers"] == again["answers"]
    assert charges_of(now.owners[0]) == 1
    assert again["charged"] == 1


def test_another_session_of_the_same_round_is_another_release(talk: Callable[..., Talk]) -> None:
    totals = []
    for k in range(2):
        now = talk()
        for _ in range(5):
            now.stage()
        assert now.server.result is not None
        totals.append(now.server.result.total)
        assert charges_of(now.owners[0]) == k + 1
    assert (totals[0] != totals[1]).mean() > 0.9  # fresh noise


def test_later_stages_are_for_those_of_the_earlier_ones(talk: Callable[..., Talk]) -> None:
    now = talk()
    now.stage()
    now.stage(4)
    fields = wire.split(now.requests[0][1:])
    assert len(fields) >= 2
    everybody = [fields[0], wire.bitmap(range(5), range(2)), *fields[2:]]
    words = bytes([Stage.MASK]) + wire.join(everybody)
    assert refused(now.ask(0, words))
    assert not charges_of(now.owners[0])


def test_a_stage_is_charged_and_answered_like_a_round(talk: Callable[..., Talk]) -> None:
    now = talk("strategy=fedfc", t=-1)
    for _ in range(5):
        now.stage()
    assert now.server.result is not None
    (charge,) = ledger_of(now.owners[0]).charges()
    assert charge.round == -1


def test_sessions_do_not_fill_the_disk(talk: Callable[..., Talk]) -> None:
    place = Path(talk().owners[0]["state"])
    for _ in range(8):
        assert not refused(talk().ask(0))
    assert len(list(place.glob("run-ab-*.sum"))) == 4


def test_peers_files_that_differ_do_not_mix(tmp_path: Path, data_file: Path) -> None:
    owners = make_owners(tmp_path, 3, honest=2)
    others = make_owners(tmp_path / "others", 3, honest=2)
    text = Path(owners[0]["peers"]).read_text().splitlines()
    text[1] = Path(others[0]["peers"]).read_text().splitlines()[1]
    (tmp_path / "mine").write_text("\n".join(text) + "\n")
    owners[2]["peers"] = str(tmp_path / "mine")
    with pytest.raises(ConfigError, match="ADVERT: only 2 clients answered, 3 are needed"):
        serve(InProcessGrid(owners), tmp_path, data_file, 3, "strategy=fedgd")
    assert not any(map(charges_of, owners))


def test_terms_say_who_the_clients_are(tmp_path: Path, values: Any) -> None:
    config: Config = parse(values(*FIVE))
    assert config.sharing is not None
    assert (config.sharing.sharers, config.plan().sharers) == (3, 3)
    assert (
        Talk(make_owners(tmp_path, 5), config).terms.digest
        != Talk(make_owners(tmp_path / "b", 5), config).terms.digest
    )
    assert CLASSES == 3
