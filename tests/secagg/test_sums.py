"""The unmasked sum is the plain sum of the survivors' integers, whoever vanishes whenever."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from party import Party, session

from fedsofim.secagg.errors import LostError
from fedsofim.secagg.graph import Neighbours
from fedsofim.secagg.session import default_threshold
from fedsofim.secagg.stages import Stage

LATE = (Stage.SIGN, Stage.UNMASK)


def check_sum(party, gone):
    early = {i for stage, numbers in gone.items() if stage not in LATE for i in numbers}
    left = set(party.numbers) - early
    assert party.run(gone) == {}
    assert party.server.result.survivors == tuple(sorted(left))
    assert party.server.result.total.dtype == np.int64
    assert np.array_equal(party.server.result.total, party.sum_of(left))
    vanished = {i for numbers in gone.values() for i in numbers}
    assert party.server.faults.keys() == vanished


@pytest.mark.parametrize("clients", [3, 4, 5, 8, 20, 33, 50])
@pytest.mark.parametrize("recover", [True, False])
def test_everybody_stays(clients, recover):
    t = default_threshold(clients, clients // 20)
    check_sum(Party(session(clients, t, clients // 20, recover=recover), clients), {})


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize(("clients", "lost"), [(5, 1), (20, 4), (40, 2)])
def test_some_vanish_in_a_stage(clients, lost, stage):
    agreed = session(clients, default_threshold(clients))
    check_sum(Party(agreed, clients), {stage: range(1, 1 + lost)})


@pytest.mark.parametrize(
    ("clients", "threshold", "colluders"), [(20, 14, 2), (60, 42, 6), (200, 150, 20)]
)
def test_some_vanish_in_every_stage(clients, threshold, colluders):
    gone = {stage: [3 * stage + 1] for stage in Stage}
    check_sum(Party(session(clients, threshold, colluders), clients), gone)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whoever_vanishes_the_sum_is_right_or_there_is_none(data):
    clients = data.draw(st.integers(3, 24))
    colluders = data.draw(st.integers(0, max(0, clients // 3 - 1)))
    least = max((clients + colluders) // 2 + 1, colluders + 2)
    agreed = session(clients, data.draw(st.integers(least, clients)), colluders)
    leaves = data.draw(
        st.lists(st.sampled_from([*Stage] + [None] * 15), min_size=clients, max_size=clients)
    )
    gone = {stage: [i for i, when in enumerate(leaves) if when == stage] for stage in Stage}
    party = Party(agreed, clients)
    early = [i for i, when in enumerate(leaves) if when is not None and when not in LATE]
    there = clients - sum(when is not None for when in leaves)
    try:
        check_sum(party, {stage: numbers for stage, numbers in gone.items() if numbers})
    except LostError:
        assert party.server.result is None
        assert there < agreed.threshold
    else:
        assert clients - len(early) >= agreed.threshold


def test_a_ring_that_loses_too_many_neighbours_is_lost_before_anything_is_unmasked():
    party = Party(session(40, 30, 2, neighbours=Neighbours(4, 3)), 40)
    asked = party.run(until=Stage.MASK)
    absent = set(party.server._windows[0][0][:2])  # 2 of the 4 after client 0 are left
    for i in asked.keys() - absent:
        party.server.take(i, party.ask(i, asked[i]))
    with pytest.raises(LostError, match="neighbours of client") as caught:
        party.server.close()
    assert set(caught.value.clients) == absent


@pytest.mark.parametrize("extreme", [-(2**62), 2**62 - 1])
def test_large_integers_are_exact(extreme):
    party = Party(session(3, 3, length=4), 3)
    party.values = np.array([[extreme] * 4, [extreme] * 4, [-extreme] * 4])
    check_sum(party, {})


def test_long_term_keys_may_be_of_different_kinds():
    """A SuperNode's, on P-384, beside an Ed25519 one."""
    party = Party(session(4, 3), 4)
    party.private[1] = ec.generate_private_key(ec.SECP384R1())
    party.private[2] = Ed25519PrivateKey.generate()
    party.keys.update({i: party.private[i].public_key() for i in (1, 2)})
    check_sum(party, {Stage.MASK: [3]})


def test_the_length_may_be_anything():
    for length in (1, 7, 10_001):
        check_sum(Party(session(3, 3, length=length), 3), {})


def test_without_recovery_one_who_vanishes_ends_it():
    party = Party(session(6, 5, recover=False), 6)
    with pytest.raises(LostError, match="everybody") as caught:
        party.run({Stage.MASK: [2]})
    assert caught.value.clients == (2,)
    early = Party(session(6, 5, recover=False), 6)
    early.run({Stage.ADVERT: [2]})  # the roster is of those who are there
    assert np.array_equal(early.server.result.total, early.sum_of({0, 1, 3, 4, 5}))


def test_too_few_are_refused_by_name():
    with pytest.raises(LostError, match="MASK: 13 clients answered, and 14 are needed") as caught:
        Party(session(20, 14, 2), 20).run({Stage.MASK: range(7)})
    assert caught.value.clients == tuple(range(7))
