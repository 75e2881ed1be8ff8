"""A server that breaks the rules: honest clients do not answer, and nothing is unmasked."""

import tracemalloc

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from party import ME, Party, at, made, refuses, session

from fedsofim.core.errors import ConfigError
from fedsofim.secagg import stages, wire
from fedsofim.secagg.errors import DistrustError, LostError, Reason
from fedsofim.secagg.primitives import sign, simulated_key
from fedsofim.secagg.session import Policy, Session
from fedsofim.secagg.stages import Stage
from fedsofim.secagg.state import State, pinned


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
    """A roster without client 5 for client 0: what it seals for client 2 does not open."""
    party, asked = at(Stage.SHARE, 6, 4)
    roster, digests, adverts = shown(party, asked[0])
    asked[0] = introduced(party, roster[:5], digests[:5], adverts[:4])
    said = {i: party.ask(i, asked[i]) for i in party.numbers}
    for i in party.numbers:
        party.server.take(i, said[i])
    mail = wire.split(party.server.close()[2][1:])[2]
    sealed = wire.pieces(wire.split(said[0][1:])[0], 48, 4)[1]
    party.ask(2, made(Stage.MASK, party, wire.bitmap(roster, roster), sealed + mail))
    held = State(*wire.split(party.states[2])).held
    assert [flag[0] for flag in wire.pieces(held, 33, 5)] == [0, 1, 1, 1, 1]


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


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(list(Stage)),
    st.sampled_from(["cut", "flip", "stretch", "random"]),
    st.floats(0, 1, exclude_max=True),
    st.binary(min_size=1, max_size=40),
)
def test_no_request_makes_a_client_fall(stage, kind, where, noise):
    """Cut, stretched or changed anywhere: an answer, or a named reason."""
    party = Party(session(4, 3), 4)
    whole = bytearray(party.run(until=stage)[ME])
    at = int(where * len(whole))
    if kind == "flip":
        whole[at] ^= noise[0] or 1
    else:
        whole[at:] = {"cut": b"", "stretch": noise + whole[at:], "random": noise}[kind]
    try:
        party.ask(ME, bytes(whole))
    except DistrustError:
        return
    # A changed envelope or confirmation is its sender's loss, and no reason to refuse.
    assert stage in (Stage.MASK, Stage.UNMASK)


def long(kind, party):
    """A request of a megabyte, of which a client could make many times as much."""
    numbers = wire.integers(range(1 << 18))
    return {
        "fields": bytes([Stage.SHARE]) + bytes(1 << 20),
        "roster": made(Stage.SHARE, party, numbers, b"", b""),
        "signers": made(Stage.UNMASK, party, numbers, b"", b""),
        "signatures": made(Stage.UNMASK, party, wire.integers(range(4)), bytes(1 << 20), b""),
    }[kind]


@pytest.mark.parametrize("kind", ["fields", "roster", "signers", "signatures"])
def test_little_is_made_of_a_long_message(kind):
    party, _ = at(Stage.UNMASK if kind.startswith("sign") else Stage.SHARE)
    request = long(kind, party)
    tracemalloc.start()
    refuses(party, request, Reason.MALFORMED)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 * len(request)
