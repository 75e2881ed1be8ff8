"""A server that breaks the rules: honest clients do not answer, and nothing is unmasked."""

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from party import Party, session

from fedsofim.core.errors import ConfigError
from fedsofim.secagg import stages, wire
from fedsofim.secagg.errors import DistrustError, LostError, Reason
from fedsofim.secagg.graph import Neighbours
from fedsofim.secagg.primitives import SEED, sign, simulated_key
from fedsofim.secagg.session import Policy, Session
from fedsofim.secagg.stages import Stage
from fedsofim.secagg.state import pinned

ME = 0


def made(stage, party, *fields):
    return bytes([stage]) + wire.join([party.session.name, *fields])


def refuses(party, request, reason, number=ME, **changed):
    """The client does not answer, and what it remembers is what it was."""
    before = party.states[number]
    with pytest.raises(DistrustError) as caught:
        party.ask(number, request, **changed)
    assert caught.value.reason == reason
    assert party.states[number] == before


def at(stage, clients=6, threshold=5, colluders=0, **more):
    """A party that is about to be asked in a stage, and the requests."""
    party = Party(session(clients, threshold, colluders, **more), clients)
    return party, party.run(until=stage)


def everyone(party):
    return list(party.numbers)


# Thresholds and terms.


@pytest.mark.parametrize(
    ("policy", "reason"), [(Policy(6), Reason.THRESHOLD), (Policy(5, 1), Reason.THRESHOLD)]
)
def test_a_client_keeps_to_its_own_minimums(policy, reason):
    party, asked = at(Stage.ADVERT)
    refuses(party, asked[ME], reason, policy=policy)
    party.ask(ME, asked[ME], policy=Policy(5, 0))


@pytest.mark.parametrize(
    "change",
    [{"threshold": 4}, {"context": b"another"}, {"length": 6}, {"recover": False}, {"quorum": 1}],
)
def test_another_session_than_the_agreed_one_is_refused(change):
    party, _ = at(Stage.ADVERT)
    other = party.session._replace(**change)
    refuses(party, bytes([Stage.ADVERT]) + other.encode(), Reason.SESSION)


def test_a_threshold_that_allows_two_lists_is_refused():
    """Of 12 clients 6 could sign one list and 6 another."""
    party = Party(Session(b"", 5, 6, 0, 0, 5, True), 12)
    asked = party.server.open(party.numbers)
    for i in party.numbers:
        party.server.take(i, party.ask(i, asked[i]))
    with pytest.raises(LostError, match="two lists"):
        party.server.close()
    digests = b"".join(
        stages.advert_digest(party.server._answers[Stage.ADVERT][i][0]) for i in party.numbers
    )
    request = made(Stage.SHARE, party, wire.integers(everyone(party)), digests, b"")
    refuses(party, request, Reason.THRESHOLD)


def test_neighbours_that_colluders_could_surround_are_refused():
    agreed = Session(b"", 5, 50, 20, 4, 2, True)
    party = Party(agreed, 60)
    advert = party.ask(ME, bytes([Stage.ADVERT]) + agreed.encode())
    names = stages.advert_digest(advert[1:]) + bytes(32 * 59)
    request = made(Stage.SHARE, party, wire.integers(everyone(party)), names, b"")
    refuses(party, request, Reason.NEIGHBOURS)


def test_nobody_is_two():
    line = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJCXZxBUhXMsGSLwGMnoGVDWLQqFJFQHXyzVR2vDNQBI"
    with pytest.raises(ConfigError, match="clients 3 and 7 have the same key"):
        pinned({3: line, 7: line + b" another comment"})


# Who takes part, and their keys.


def shown(party, request):
    """The roster, the digests and the adverts of a share request."""
    _, roster, digests, adverts = wire.split(request[1:], 4)
    return (
        wire.read_integers(roster),
        wire.pieces(digests, 32, len(roster) // 4),
        wire.split(adverts),
    )


def introduced(party, roster, digests, adverts):
    fields = [wire.integers(roster), b"".join(digests), wire.join(adverts)]
    return made(Stage.SHARE, party, *fields)


@pytest.mark.parametrize(
    "roster",
    [[1, 2, 3, 4, 5], [0, 1, 2, 3, 3, 5], [1, 0, 2, 3, 4, 5], [0, 1, 2, 3, 4, 99], [0, 1, 2]],
    ids=["without me", "one twice", "unsorted", "a stranger", "too few"],
)
def test_a_wrong_roster_is_refused(roster):
    party, asked = at(Stage.SHARE)
    _, digests, adverts = shown(party, asked[ME])
    reason = Reason.THRESHOLD if len(roster) < 5 else Reason.ROSTER
    changed = introduced(party, roster, digests[: len(roster)], adverts)
    refuses(party, changed, reason)


def forged(party, number):
    """Keys that the server made in a client's name, with a signature of its own."""
    public = b"".join(X25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(3))
    message = stages.advert_message(party.session.name, number, public)
    return wire.join([public, sign(simulated_key("server", 0), message)])


@pytest.mark.parametrize("kind", ["forged", "of another client", "of another session"])
def test_swapped_keys_are_refused(kind):
    party, asked = at(Stage.SHARE)
    roster, digests, adverts = shown(party, asked[ME])
    neighbours = [i for i in roster if i != ME]
    victim = neighbours[2]
    if kind == "forged":
        other = forged(party, victim)
    elif kind == "of another client":
        other = adverts[3]
    else:
        older = Party(session(6, 5, context=b"run 1, round 0"), 6)
        older.run(until=Stage.SHARE)
        other = older.replies[Stage.ADVERT, victim][1:]
    adverts[2] = other
    refuses(party, introduced(party, roster, digests, adverts), Reason.KEYS)
    digests[victim] = stages.advert_digest(other)
    refuses(party, introduced(party, roster, digests, adverts), Reason.KEYS)


def test_my_own_keys_cannot_be_swapped():
    party, asked = at(Stage.SHARE)
    roster, digests, adverts = shown(party, asked[ME])
    digests[ME] = stages.advert_digest(forged(party, ME))
    refuses(party, introduced(party, roster, digests, adverts), Reason.KEYS)


def test_those_who_saw_other_rosters_cannot_read_each_other():
    """One roster without client 5 for clients 0 and 1: their masks and envelopes fit nobody's."""
    party, asked = at(Stage.SHARE)
    for i in (0, 1):
        roster, digests, adverts = shown(party, asked[i])
        asked[i] = introduced(party, roster[:5], digests[:5], adverts[:4])
    for i in party.numbers:
        party.server.take(i, party.ask(i, asked[i]))
    asked = party.server.close()
    short = wire.bitmap(range(5), range(5))
    for i in (0, 1):  # their bitmap is of five, and the fifth is silent for them
        fields = wire.split(asked[i][1:])
        asked[i] = made(Stage.MASK, party, short, fields[2][:-48])
    for i in party.numbers:
        party.server.take(i, party.ask(i, asked[i]))
    asked = party.server.close()
    refuses(party, asked[0], Reason.MALFORMED, 0)  # a list of six
    mine = made(Stage.SIGN, party, short)
    assert party.server.take(0, party.ask(0, mine)) is not None
    for i in range(2, 6):
        assert party.server.take(i, party.ask(i, asked[i])) is None
    with pytest.raises(LostError, match="only 4 clients answered"):
        party.server.close()


# Lists of those who have shared, and of survivors.


def test_too_few_who_have_shared_are_refused_before_anything_is_drawn():
    party, asked = at(Stage.MASK)
    _, _, envelopes = wire.split(asked[ME][1:])
    for numbers in ([0, 1, 2, 3], [1, 2, 3, 4, 5]):
        request = made(Stage.MASK, party, wire.bitmap(range(6), numbers), envelopes[: 48 * 3])
        refuses(party, request, Reason.ROSTER)
    assert party.drawn == []


def test_a_client_that_was_shown_few_neighbours_is_not_unmasked_by_the_others():
    """A ring of 40: client v adds no mask at all, and its seed would lay it bare."""
    party, asked = at(Stage.MASK, 40, 30, 2, neighbours=Neighbours(4, 3))
    near = party.server._neighbours(ME)
    few = wire.bitmap(party.numbers, set(party.numbers) - set(near))
    asked[ME] = made(Stage.MASK, party, few, b"")
    for i, request in asked.items():
        party.server.take(i, party.ask(i, request))
    asked = party.server.close()
    refuses(party, asked[ME], Reason.SURVIVORS)
    for i in asked.keys() - {ME}:
        party.server.take(i, party.ask(i, asked[i]))
    asked = party.server.close()
    for i, request in asked.items():
        assert party.server.take(i, party.ask(i, request)) is None
    assert [party.server._share_of(ME, other) for other in near] == [None] * 8
    with pytest.raises(LostError, match="0 shares of client 0"):
        party.server.close()


def test_shares_of_one_who_vanished_after_the_same_list_are_given():
    """The other way round, so that the test above can fail."""
    party = Party(session(40, 30, 2, neighbours=Neighbours(4, 3)), 40)
    party.run({Stage.SIGN: [ME]})
    assert None not in [party.server._share_of(ME, other) for other in party.server._neighbours(ME)]


@pytest.mark.parametrize("survivors", [[0, 1, 2, 3], [1, 2, 3, 4, 5]], ids=["few", "without me"])
def test_a_wrong_list_of_survivors_is_refused(survivors):
    party, _ = at(Stage.SIGN)
    request = made(Stage.SIGN, party, wire.bitmap(range(6), survivors))
    refuses(party, request, Reason.SURVIVORS)


def test_who_did_not_share_cannot_survive():
    party = Party(session(6, 4), 6)
    party.run({Stage.SHARE: [5]}, until=Stage.SIGN)
    request = made(Stage.SIGN, party, wire.bitmap(range(6), range(6)))
    refuses(party, request, Reason.SURVIVORS)


def test_neighbours_of_one_side_cannot_all_be_gone():
    party, _ = at(Stage.SIGN, 40, 30, 2, neighbours=Neighbours(4, 3))
    after, _before = party.server._graph.windows(ME)
    left = set(party.numbers) - set(after[:2])
    refuses(party, made(Stage.SIGN, party, wire.bitmap(party.numbers, left)), Reason.SURVIVORS)


def test_alive_for_some_and_dead_for_others_is_refused():
    """Half sign that client 5 is gone, half that it is there: nobody unmasks for either list."""
    party, asked = at(Stage.SIGN, 6, 4)
    without = made(Stage.SIGN, party, wire.bitmap(range(6), range(5)))
    signed = {i: party.ask(i, without if i < 3 else asked[i])[1:] for i in party.numbers}
    none = bytes(16 * 5)
    for names in ([0, 1, 2, 3], [2, 3, 4, 5], [0, 1, 2]):
        for number in party.numbers:
            fields = [wire.integers(names), wire.join(signed[i] for i in names), none]
            refuses(party, made(Stage.UNMASK, party, *fields), Reason.SIGNATURES, number)


def test_signatures_of_one_cannot_count_as_many():
    party, asked = at(Stage.SIGN)
    signed = {i: party.ask(i, asked[i])[1:] for i in party.numbers}
    for names in ([0, 1, 2, 3, 3], [0, 1, 2, 3], [0, 1, 2, 3, 9]):
        signatures = wire.join(signed.get(i, b"") for i in names)
        request = made(Stage.UNMASK, party, wire.integers(names), signatures, bytes(80))
        refuses(party, request, Reason.SIGNATURES)
    request = made(
        Stage.UNMASK, party, wire.integers([0, 1, 2, 3, 4]), wire.join([signed[0]] * 5), bytes(80)
    )
    refuses(party, request, Reason.SIGNATURES)


def test_for_each_neighbour_one_share_of_one_secret_is_given():
    party = Party(session(8, 6), 8)
    party.run({Stage.MASK: [6], Stage.SIGN: [7]})
    for holder in range(6):
        both = wire.pieces(wire.split(party.replies[Stage.UNMASK, holder][1:], 2)[1], 1 + SEED, 7)
        assert [len(share) for share in both] == [17] * 7
    tags = wire.pieces(party.server._answers[Stage.SHARE][6][1], 16, 14)
    given = [party.server._share_of(6, holder) for holder in range(6)]
    marks = [hashlib.sha256(b"share\0" + share).digest()[:16] for share in given]
    assert [tags.index(mark) % 2 for mark in marks] == [1] * 6  # of its key, not of its seed
    alive = [party.server._share_of(7, holder) for holder in range(6)]
    tags = wire.pieces(party.server._answers[Stage.SHARE][7][1], 16, 14)
    marks = [hashlib.sha256(b"share\0" + share).digest()[:16] for share in alive]
    assert [tags.index(mark) % 2 for mark in marks] == [0] * 6


# Stages again, out of turn, and of other sessions.


@pytest.mark.parametrize("stage", list(Stage)[1:])
def test_a_stage_out_of_turn_is_refused(stage):
    party = Party(session(6, 5), 6)
    party.run()
    fresh = Party(party.session, 6)
    refuses(fresh, party.requests[stage, ME], Reason.STAGE)
    if stage > Stage.SHARE:
        fresh.ask(ME, party.requests[Stage.ADVERT, ME])
        refuses(fresh, party.requests[stage, ME], Reason.STAGE)


def test_asked_again_in_the_same_words_the_answer_is_the_same_and_in_others_none():
    party = Party(session(6, 5), 6)
    party.run()
    assert sorted(party.drawn) == everyone(party)
    for stage in Stage:
        again = party.ask(ME, party.requests[stage, ME])
        assert again == party.replies[stage, ME]
        refuses(party, party.requests[stage, ME] + bytes(4), Reason.AGAIN)
    assert sorted(party.drawn) == everyone(party)  # no noise twice


@pytest.mark.parametrize("stage", [Stage.SHARE, Stage.MASK, Stage.SIGN, Stage.UNMASK])
def test_a_stage_of_another_round_is_refused(stage):
    older = Party(session(6, 5, context=b"run 1, round 0"), 6)
    older.run()
    party, _ = at(stage)
    refuses(party, older.requests[stage, ME], Reason.SESSION)


def test_envelopes_of_another_round_do_not_open():
    older = Party(session(6, 5, context=b"run 1, round 0"), 6)
    older.run()
    party, asked = at(Stage.MASK)
    for i in party.numbers:
        mail = wire.split(older.requests[Stage.MASK, i][1:])[2]
        shared = wire.split(asked[i][1:])[1]
        party.server.take(i, party.ask(i, made(Stage.MASK, party, shared, mail)))
    asked = party.server.close()
    for i in asked.keys() - {5}:
        party.server.take(i, party.ask(i, asked[i]))
    asked = party.server.close()
    for i, request in asked.items():
        party.server.take(i, party.ask(i, request))
    with pytest.raises(LostError, match="0 shares of client 5"):
        party.server.close()


def test_without_recovery_no_stage_but_two_is_answered():
    party = Party(session(6, 5, recover=False), 6)
    party.run()
    other = Party(session(6, 5), 6)
    other.run()
    for stage in (Stage.SHARE, Stage.SIGN, Stage.UNMASK):
        refuses(party, other.requests[stage, ME], Reason.STAGE)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_request_makes_a_client_fall(data):
    """Cut, stretched or changed anywhere: an answer, or a named reason."""
    stage = data.draw(st.sampled_from(list(Stage)))
    party = Party(session(4, 3), 4)
    whole = bytearray(party.run(until=stage)[ME])
    where = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["cut", "flip", "stretch", "random"]))
    if kind == "cut":
        whole = whole[:where]
    elif kind == "flip":
        whole[where] ^= data.draw(st.integers(1, 255))
    elif kind == "stretch":
        whole[where:where] = data.draw(st.binary(min_size=1, max_size=40))
    else:
        whole = bytearray(data.draw(st.binary(max_size=200)))
    try:
        party.ask(ME, bytes(whole))
    except DistrustError:
        return
    # A changed envelope or confirmation is its sender's loss, and no reason to refuse.
    assert stage in (Stage.MASK, Stage.UNMASK)
