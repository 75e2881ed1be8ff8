"""A server that lies about who is there: honest clients do not sign, and nothing is unmasked."""

import hashlib

import pytest
from party import ME, Party, at, made, refuses, session

from fedsofim.secagg import wire
from fedsofim.secagg.errors import LostError, Reason
from fedsofim.secagg.graph import Neighbours
from fedsofim.secagg.primitives import SEED, agree, combine_seed, private_key, sign, stream
from fedsofim.secagg.stages import Stage, mask_key, read_advert, self_key, survivors_message
from fedsofim.secagg.state import State


def test_too_few_who_have_shared_are_refused_before_anything_is_drawn():
    party, asked = at(Stage.MASK)
    _, _, envelopes = wire.split(asked[ME][1:])
    for numbers in ([0, 1, 2, 3], [1, 2, 3, 4, 5]):
        request = made(Stage.MASK, party, wire.bitmap(range(6), numbers), envelopes[: 48 * 3])
        refuses(party, request, Reason.ROSTER)
    assert party.drawn == []


def test_a_client_that_was_shown_few_neighbours_is_not_unmasked_by_the_others():
    """A ring of 40: client 0 adds fewer masks than the others think, and its seed lays it open."""
    party, asked = at(Stage.MASK, 40, 30, 2, neighbours=Neighbours(4, 3))
    after, before = party.server._windows[ME]
    near, hidden = (*after, *before), {after[0], before[0]}
    few = wire.bitmap(party.numbers, set(party.numbers) - hidden)
    mail = wire.pieces(wire.split(asked[ME][1:])[2], 48, 8)
    left = b"".join(sealed for v, sealed in zip(near, mail, strict=True) if v not in hidden)
    asked[ME] = made(Stage.MASK, party, few, left)
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


def test_a_client_does_not_draw_noise_for_a_list_with_few_of_its_neighbours():
    party, _asked = at(Stage.MASK, 40, 30, 2, neighbours=Neighbours(4, 3))
    after, _before = party.server._windows[ME]
    few = wire.bitmap(party.numbers, set(party.numbers) - set(after[:2]))
    refuses(party, made(Stage.MASK, party, few, bytes(48 * 6)), Reason.ROSTER)
    assert party.drawn == []


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
    after, _before = party.server._windows[ME]
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
    for names in ([0, 1, 2, 2], [0, 1, 2], [0, 1, 2, 9]):
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


def test_lists_that_nobody_signs_would_unmask_few():
    """Why they are signed: 100 clients, 10 of them the server's, and lists of 60 for each honest.

    Shares of 60 give a secret back. Clients 0 to 17 are alive for all, the other 72 honest ones
    are called gone by windows of 40, so that 50 honest and 10 colluding shares lay each one's
    masks open, and too few remain for their own seeds: what is left is the sum of 18.
    """
    few, others, t, c = 18, 72, 60, 10
    gone = {i: {few + (i - few + k) % others for k in range(1, 41)} for i in range(few, 90)}
    gone |= {i: {few + (4 * i + k) % others for k in range(40)} for i in range(few)}
    assert all(i not in away and 100 - len(away) >= t for i, away in gone.items())
    words = [sum(v in away for away in gone.values()) for v in range(90)]
    assert words == [0] * few + [t - c] * others
    assert all(90 - said + c < t for said in words[few:])
    assert (90 * (2 * t - 100 - c)) / (t - c) == few


def test_one_colluder_more_than_agreed_can_have_two_lists_and_one_client_bare():
    """Why an owner that expects more colluders than the run counts on nobody's noise but its own.

    Client 4 signs both lists. By one of them client 0 gives its seed, by the other its neighbours
    give its key.
    """
    party, _ = at(Stage.SIGN, 5, 4)
    lists = {0: [0, 1, 2, 4], 1: [0, 1, 2, 4], 2: [1, 2, 3, 4], 3: [1, 2, 3, 4]}
    roster, everybody = range(5), wire.bitmap(range(5), range(5))
    root = State(*wire.split(party.states[ME])).root
    signed, shares = {}, {}
    for i, left in lists.items():
        shown = wire.bitmap(roster, left)
        signed[i] = party.ask(i, made(Stage.SIGN, party, shown))[1:]
        message = survivors_message(root, everybody, shown)
        signed[4, i] = sign(party.private[4], message)
    told = {i: wire.split(party.replies[Stage.MASK, i][1:])[1] for i in roster}
    for i, signers in {0: [0, 1, 4], 2: [2, 3, 4], 3: [2, 3, 4]}.items():
        signatures = wire.join(signed[4, i] if j == 4 else signed[j] for j in signers)
        words = b"".join(wire.pieces(told[j], 16, 4)[i - (i > j)] for j in roster if j != i)
        reply = party.ask(i, made(Stage.UNMASK, party, wire.integers(signers), signatures, words))
        shares[i] = wire.split(reply[1:])
    seed = shares[0][0]
    key = combine_seed({i - 1: wire.pieces(shares[i][1], 17, 4)[0][1:] for i in (2, 3)}, 2)
    masking, y = private_key(key, party.session.name), wire.split(party.replies[Stage.MASK, ME][1:])
    x = wire.read_vector(y[0], 5) - stream(self_key(seed, root), 5)
    for i in range(1, 5):
        theirs = read_advert(party.replies[Stage.ADVERT, i][1:], party.session, i).masks
        x += stream(mask_key(agree(masking, theirs), root, ME, i), 5)
    assert x.astype("i8").tolist() == party.values[ME].tolist()
