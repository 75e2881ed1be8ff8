"""What a server is sent and keeps shows no single vector; a client keeps nothing too long."""

import numpy as np
import pytest
from party import Party, session
from scipy import stats

from fedsofim.secagg import primitives, stages, wire
from fedsofim.secagg.errors import DistrustError, LostError
from fedsofim.secagg.server import Server
from fedsofim.secagg.stages import Stage

LENGTH = 20_000


def uniform(vector):
    """The least p-value of tests that a vector of uint64 looks random."""
    values = np.asarray(vector).view(np.uint64)
    counts = np.bincount(values.view(np.uint8), minlength=256)
    pairs = np.corrcoef(values[:-1].astype(float), values[1:].astype(float))[0, 1]
    bits = [int((values >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(0, 64, 7)]
    return min(
        stats.chisquare(counts).pvalue,
        stats.kstest(values.astype(float) / 2.0**64, "uniform").pvalue,
        2 * stats.norm.sf(abs(pairs) * np.sqrt(len(values))),
        *(stats.binomtest(ones, len(values)).pvalue for ones in bits),
    )


@pytest.fixture(scope="module")
def whole():
    """A session to its end, with one who vanished, and all that was said in it."""
    party = Party(session(5, 4, length=LENGTH), 5)
    party.run({Stage.MASK: [4]})
    return party


def sent(party, number):
    return wire.read_vector(wire.split(party.replies[Stage.MASK, number][1:])[0], LENGTH)


def test_what_is_sent_looks_random_and_what_is_summed_does_not(whole):
    for i in range(4):
        assert uniform(sent(whole, i)) > 1e-6
        assert uniform(whole.values[i]) < 1e-12
        assert uniform(sent(whole, i) - whole.values[i].astype(np.uint64)) > 1e-6
    assert uniform(whole.server.result.total) < 1e-12


def test_with_all_seeds_that_the_server_has_one_vector_still_looks_random(whole):
    """Its own mask and that with the one who is gone can be removed; those with survivors not."""
    server = whole.server
    key = primitives.private_key(server._recover(4, 1), server.session.name)
    for i in range(4):
        seed = wire.split(whole.replies[Stage.UNMASK, i][1:])[0]
        y = sent(whole, i) - primitives.stream(stages.self_key(seed, server._root), LENGTH)
        public = stages.read_advert(whole.replies[Stage.ADVERT, i][1:], server.session, i).masks
        common = stages.mask_key(primitives.agree(key, public), server._root, i, 4)
        y = y + primitives.stream(common, LENGTH)
        assert uniform(y) > 1e-6
    total = sum(sent(whole, i) for i in range(4))
    assert uniform(total) > 1e-6  # nor does the sum without the seeds show anything


def test_without_recovery_what_is_sent_looks_random_too():
    party = Party(session(3, 3, length=LENGTH, recover=False), 3)
    party.run()
    assert all(uniform(sent(party, i)) > 1e-6 for i in range(3))
    assert uniform(sent(party, 0) + sent(party, 1)) > 1e-6


def test_the_same_vector_looks_different_every_time():
    one, other = (Party(session(3, 3, context=c, length=LENGTH), 3) for c in (b"1", b"2"))
    one.run()
    other.run()
    assert np.array_equal(one.values, other.values)
    assert uniform(sent(one, 0) - sent(other, 0)) > 1e-6


def held(thing, seen=None):
    """All bytes that an object holds, wherever in it."""
    seen = {} if seen is None else seen
    if id(thing) in seen:
        return
    seen[id(thing)] = thing  # kept, so that no other gets its number
    if isinstance(thing, bytes):
        yield thing
    elif isinstance(thing, np.ndarray):
        yield thing.tobytes()
    elif isinstance(thing, dict):
        yield from held([*thing.keys(), *thing.values()], seen)
    elif isinstance(thing, (list, tuple, set)):
        for item in thing:
            yield from held(item, seen)
    elif hasattr(thing, "__dict__"):
        yield from held(vars(thing), seen)


def watched(party):
    """Take each stage, and read all that the server holds after every answer."""
    asked = party.server.open(party.numbers)
    while asked:
        for i, request in asked.items():
            party.replies[party.server.stage, i] = reply = party.ask(i, request)
            party.server.take(i, reply)
            yield b"|".join(held(party.server))
        asked = party.server.close()
        yield b"|".join(held(party.server))


@pytest.mark.parametrize("recover", [True, False])
def test_the_server_holds_nobodys_vector(recover):
    """Neither plain nor masked; only the very first masked one is, for a moment, the sum."""
    party = Party(session(5, 4, length=50, recover=recover), 5)
    plain = [party.values[i].tobytes() for i in party.numbers]
    for memory in watched(party):
        assert not any(vector in memory for vector in plain)
        replies = [party.replies.get((Stage.MASK, i)) for i in range(1, 5)]
        assert not any(wire.split(reply[1:])[0] in memory for reply in replies if reply)
    assert party.server.result.total.tobytes() in b"|".join(held(party.server))
    party.server.kept = {"by mistake": [party.values[2]]}
    assert plain[2] in b"|".join(held(party.server))  # it would have been seen


def test_a_session_that_is_lost_shows_nothing():
    party = Party(session(5, 4, length=LENGTH), 5)
    with pytest.raises(LostError):
        party.run({Stage.SIGN: [0, 1, 2]})
    assert uniform(party.server._total) > 1e-6


def test_a_client_forgets_its_secrets_after_the_last_answer():
    for recover, last in ((True, Stage.UNMASK), (False, Stage.MASK)):
        party = Party(session(4, 3, recover=recover), 4)
        asked = party.run(until=last)
        secrets = wire.split(party.states[0])[1]
        assert len(secrets) == (64 if recover else 16)
        assert secrets[:16] in party.states[0]  # the seed of its key
        reply = party.ask(0, asked[0])
        assert secrets[:16] not in party.states[0]
        assert not recover or secrets[32:] not in party.states[0]  # the key of its envelopes
        assert party.ask(0, asked[0]) == reply


def test_a_client_may_start_anew_between_any_two_stages():
    """A state is bytes, and nothing else is remembered: here each answer is in a fresh process."""
    party = Party(session(5, 4), 5)

    def restart(stage, number, request):
        party.states[number] = bytes(bytearray(party.states[number]))
        return request

    party.run({Stage.UNMASK: [1]}, request=restart)
    assert np.array_equal(party.server.result.total, party.sum_of(range(5)))


def test_a_refusal_or_a_failed_release_leaves_the_state_as_it_was():
    party = Party(session(4, 3), 4)
    asked = party.run(until=Stage.MASK)
    before, party.values = party.states[0], party.values.astype(float)
    with pytest.raises(TypeError, match="int64"):
        party.ask(0, asked[0])
    assert party.states[0] == before
    with pytest.raises(DistrustError):
        party.ask(0, asked[1] + b"?")
    party.values = party.values.astype(np.int64)
    party.ask(0, asked[0])


def test_servers_of_two_sessions_share_nothing():
    agreed = session(4, 3)
    one, other = Server(agreed, {}), Server(agreed, {})
    one._answers[Stage.ADVERT][0] = (b"",)
    assert other._answers[Stage.ADVERT] == {}
