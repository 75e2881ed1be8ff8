"""Clients that are silent, wrong or malicious: the sum is right, or there is none, and says why."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from party import Party, session

from fedsofim.core.errors import ConfigError
from fedsofim.secagg import primitives, stages, wire
from fedsofim.secagg.errors import LostError
from fedsofim.secagg.graph import Neighbours
from fedsofim.secagg.stages import Stage

BAD, GONE = 3, 4


def changing(stage, change):
    """A change of what client BAD answers in a stage."""
    return lambda s, i, reply: change(reply) if (s, i) == (stage, BAD) else reply


def garbage(reply):
    return b"\xff" * len(reply)


def zeroed(field, count):
    """A reply with one field of zeros."""

    def change(reply):
        fields = wire.split(reply[1:], count)
        fields[field] = bytes(len(fields[field]))
        return reply[:1] + wire.join(fields)

    return change


CHANGES = {
    "garbage": garbage,
    "empty": lambda reply: b"",
    "cut": lambda reply: reply[:-1],
    "long": lambda reply: reply + b"\0",
    "bare": lambda reply: reply[:1],
    "another stage": lambda reply: bytes([reply[0] % 5 + 1]) + reply[1:],
}


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("kind", CHANGES)
def test_an_answer_that_cannot_be_read_is_like_none(stage, kind):
    party = Party(session(6, 5), 6)
    party.run(reply=changing(stage, CHANGES[kind]))
    late = stage in (Stage.SIGN, Stage.UNMASK)
    left = set(party.numbers) - (set() if late else {BAD})
    assert np.array_equal(party.server.result.total, party.sum_of(left))
    assert party.server.result.survivors == tuple(sorted(left))
    assert list(party.server.faults) == [BAD]


def test_wrong_shares_are_found_and_not_used():
    party = Party(session(8, 5), 8)
    party.run({Stage.MASK: [GONE]}, reply=changing(Stage.UNMASK, flipped_shares))
    assert np.array_equal(party.server.result.total, party.sum_of(set(range(8)) - {GONE}))
    assert party.server.faults[BAD] == f"a wrong share of client {GONE}"


def flipped_shares(reply):
    seed, shares = wire.split(reply[1:], 2)
    return reply[:1] + wire.join(
        [seed, bytes(byte ^ 1 if i % 17 else byte for i, byte in enumerate(shares))]
    )


def test_a_wrong_seed_is_found_and_done_without():
    party = Party(session(8, 5), 8)
    party.run(reply=changing(Stage.UNMASK, zeroed(0, 2)))
    assert np.array_equal(party.server.result.total, party.sum_of(range(8)))
    assert "do not fit" in party.server.faults[BAD]


@pytest.mark.parametrize("field", [0, 1], ids=["envelopes", "tags"])
def test_who_shares_nothing_of_use_may_stay(field):
    party = Party(session(8, 6), 8)
    party.run(reply=changing(Stage.SHARE, zeroed(field, 2)))
    assert np.array_equal(party.server.result.total, party.sum_of(range(8)))


@pytest.mark.parametrize("field", [0, 1], ids=["envelopes", "tags"])
@pytest.mark.parametrize("stage", [Stage.MASK, Stage.SIGN])
def test_who_shares_nothing_of_use_and_vanishes_is_named(field, stage):
    party = Party(session(8, 6), 8)
    with pytest.raises(LostError, match=f"0 shares of client {BAD}") as caught:
        party.run({stage: [BAD]}, reply=changing(Stage.SHARE, zeroed(field, 2)))
    assert caught.value.clients == (BAD,)


def test_shares_of_another_secret_than_announced_are_named(monkeypatch):
    """Shares that fit their tags, of a seed that does not fit the commitment."""
    true = primitives.split_seed
    party = Party(session(8, 6), 8)

    def other(seed, threshold, count):
        mine = party.states[BAD] and seed in party.states[BAD] and count > 1
        return true(bytes(16) if mine else seed, threshold, count)

    monkeypatch.setattr(primitives, "split_seed", other)
    with pytest.raises(LostError, match=f"client {BAD} is not the one it announced") as caught:
        party.run({Stage.MASK: [BAD]})
    assert caught.value.clients == (BAD,)


def test_wrong_confirmations_cost_only_their_sender():
    bad = changing(Stage.MASK, zeroed(1, 2))
    party = Party(session(8, 6), 8)
    party.run(reply=bad)
    assert np.array_equal(party.server.result.total, party.sum_of(range(8)))
    with pytest.raises(LostError, match=f"0 shares of client {BAD}"):
        Party(session(8, 6), 8).run({Stage.SIGN: [BAD]}, reply=bad)


@pytest.mark.parametrize("place", [0, 1])
def test_keys_of_small_order_are_refused_by_the_server(place):
    """Neighbours would not go on with them, and one client would stop all."""
    party = Party(session(6, 5), 6)

    def change(reply):
        public, _ = wire.split(reply[1:], 2)
        pieces = wire.pieces(public, 32, 3)
        pieces[place] = bytes(32)
        public = b"".join(pieces)
        message = stages.advert_message(party.session.name, BAD, public)
        return reply[:1] + wire.join([public, primitives.sign(party.private[BAD], message)])

    party.run(reply=changing(Stage.ADVERT, change))
    assert party.server.result.survivors == (0, 1, 2, 4, 5)
    assert list(party.server.faults) == [BAD]


def test_a_second_answer_and_a_stranger_change_nothing():
    party = Party(session(6, 5), 6)
    asked = party.run(until=Stage.MASK)
    for i, request in asked.items():
        reply = party.ask(i, request)
        assert party.server.take(i, reply) is None
        assert "nothing was asked" in party.server.take(i, reply)
        assert "nothing was asked" in party.server.take(77, reply)
    asked = party.server.close()
    for _ in (Stage.SIGN, Stage.UNMASK):
        for i, request in asked.items():
            party.server.take(i, party.ask(i, request))
        asked = party.server.close()
    assert np.array_equal(party.server.result.total, party.sum_of(range(6)))
    assert party.server.faults == {}


def test_somebody_without_a_key_is_not_invited():
    party = Party(session(6, 5), 6)
    with pytest.raises(ConfigError, match=r"clients \[9\]: there is no key"):
        party.server.open([0, 1, 2, 9])


def test_in_a_ring_wrong_shares_are_found_too():
    party = Party(session(40, 30, 2, neighbours=Neighbours(6, 3)), 40)
    party.run({Stage.MASK: [GONE]}, reply=changing(Stage.UNMASK, flipped_shares))
    assert np.array_equal(party.server.result.total, party.sum_of(set(range(40)) - {GONE}))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(Stage)),
    st.booleans(),
    st.floats(0, 1, exclude_max=True),
    st.binary(min_size=1, max_size=60),
)
def test_no_answer_makes_the_server_fall(stage, flip, where, noise):
    party = Party(session(4, 3), 4)

    def change(reply):
        whole, at = bytearray(reply), int(where * len(reply))
        if flip:
            whole[at] ^= noise[0] or 1
        else:
            whole[at:] = noise
        return bytes(whole)

    try:
        party.run(reply=changing(stage, change))
    except LostError:
        assert party.server.result is None
    else:
        survivors, total = party.server.result.survivors, party.server.result.total
        # In the mask stage any integers of the right number are somebody's vector.
        assert stage == Stage.MASK or np.array_equal(total, party.sum_of(survivors))
