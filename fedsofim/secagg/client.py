r"""A client's side: one answer in each stage, or none.

In the last stage honest clients give their own seed, and for each neighbour a share of one secret:
of the seed of its own mask, if it is on the list of survivors, and else of its key. Never of both,
and only when most members of the list have signed that very list.

**Why the signatures.** Shares alone, t of n, would keep both secrets of one client apart if
$2t > n + c$, but not the list together. Told different lists, each of t or more, the $n - c$ honest
clients call $n - t$ others gone, each its own, and $t - c$ such words lay a client's masks open.
That is enough for all but $(n-c)(2t-n-c)/(t-c)$ honest clients, whose sum the server would have:
18 of 90, for t = 60 of 100 with 10 colluders, and not 50. With signatures there is one list
(`session`).

**Why the confirmations.** The list of those who have shared comes before the masks, and is signed
only with the survivors. A client could have been shown another one, with few of its neighbours, so
that it has few masks; it would not sign, but its neighbours could unmask it by their shares. So
each tells its neighbours, in the mask stage and under the seal that they share, which list it has
seen, and they give no share of the seed of one who saw another.

**What a state is for.** `answer` is a pure function of what came before and what is asked. Asked
again in the same words, it gives the same answer; in other words it refuses. Keep the new state
before the answer leaves; a state that is lost ends the session for this client.
"""

import hashlib
from collections.abc import Callable
from hmac import compare_digest

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.secagg import primitives as crypto
from fedsofim.secagg import stages, wire
from fedsofim.secagg.errors import DistrustError, Reason, trust
from fedsofim.secagg.graph import Graph, draw
from fedsofim.secagg.primitives import KEY, SEALED, SEED
from fedsofim.secagg.session import Session, read_session
from fedsofim.secagg.stages import Stage
from fedsofim.secagg.state import HELD, Member, State, new_secrets, secrets_of

Release = Callable[[], Array]
FIELDS = 4  # of a request, at most


def answer(
    state: bytes, request: bytes, member: Member, release: Release | None = None
) -> tuple[bytes, bytes]:
    """The state after a request, and the answer to it.

    Args:
        state: of this session so far; empty at its beginning.
        request: what the server shows.
        member: what the client knows itself.
        release: draws the int64 vector to be summed, noise and all, and charges for it. It is
            called in the mask stage alone, once, when all checks are passed.

    Raises:
        DistrustError: there is no answer, and the state is what it was.
    """
    stage, asked = stages.stage_of(request), hashlib.sha256(request).digest()
    known = State(*wire.split(state, len(State._fields))) if state else State()
    answers = wire.split(known.answers)
    for before, given in zip(answers[::2], answers[1::2], strict=True):
        if given[0] == stage:
            trust(before == asked, Reason.AGAIN, stage.name)
            return state, given
    if not state:
        trust(stage == Stage.ADVERT, Reason.STAGE, stage.name)
        new, body = _advert(request[1:], member)
    else:
        session, fields = read_session(known.session), wire.split(request[1:], most=FIELDS)
        trust(session == member.session, Reason.SESSION)  # or it is charged by other terms
        order = stages.ALL if session.recover else stages.WITHOUT_RECOVERY
        due = order[len(answers) // 2 : len(answers) // 2 + 1]
        trust((stage,) == due, Reason.STAGE, stage.name)
        trust(fields[:1] == [session.name], Reason.SESSION)
        new, body = _LATER[stage](known, session, fields[1:], member, release)
    reply = bytes([stage]) + body
    new = new._replace(answers=wire.join([*answers, asked, reply]))
    last = stages.ALL[-1] if read_session(new.session).recover else stages.WITHOUT_RECOVERY[-1]
    return wire.join(new.without_secrets() if stage == last else new), reply


def _advert(blob: bytes, member: Member) -> tuple[State, bytes]:
    session = read_session(blob)
    trust(session == member.session, Reason.SESSION)
    member.policy.check_terms(session)
    secrets = new_secrets(session)
    mine = secrets_of(secrets, session)
    public = crypto.public_bytes(mine.masking)
    if session.recover:
        public += crypto.public_bytes(mine.sealing)
        public += stages.commitment_of(mine.seed, session.name)
    message = stages.advert_message(session.name, member.number, public)
    advert = wire.join([public, crypto.sign(member.key, message)])
    return State(session=blob, secrets=secrets), advert


def _admit(
    state: State, session: Session, fields: list[bytes], member: Member
) -> tuple[State, Graph, list[bytes]]:
    """Check who takes part, and whether the neighbours' keys are theirs."""
    trust(len(fields) == 3, Reason.MALFORMED)
    wire.read_integers(fields[0], len(member.peers))  # before more is made of them
    me, (root, graph, digests) = member.number, stages.read_roster(session, *fields[:2])
    trust(me in digests and digests.keys() <= member.peers.keys(), Reason.ROSTER)
    member.policy.check(session, len(digests))
    mine = wire.split(state.answers)[1][1:]
    trust(digests[me] == stages.advert_digest(mine), Reason.KEYS, "not my own")
    neighbours = graph.neighbours(me)
    adverts = wire.split(fields[2], len(neighbours))
    seals, masks = [], []
    for other, shown in zip(neighbours, adverts, strict=True):
        advert = stages.read_advert(shown, session, other)
        right = digests[other] == advert.digest
        signed = right and crypto.signed(member.peers[other], advert.signature, advert.message)
        trust(signed, Reason.KEYS, f"client {other}")
        seals.append(advert.seals)
        masks.append(advert.masks)
    return state._replace(root=root, roster=fields[0], masks=b"".join(masks)), graph, seals


def _share(
    state: State, session: Session, fields: list[bytes], member: Member, _: Release | None
) -> tuple[State, bytes]:
    state, graph, keys = _admit(state, session, fields, member)
    me, windows = member.number, graph.windows(member.number)
    mine = secrets_of(state.secrets, session)
    sealing, of_seed = mine.sealing, _shares(mine.seed, windows, session.quorum)
    of_key = _shares(mine.of_masks, windows, session.quorum)
    envelopes, seals, sealed = [], [], []
    for other, key, *both in zip(graph.neighbours(me), keys, of_seed, of_key, strict=True):
        common = member.agree(sealing, key)
        if common is None:
            raise DistrustError(Reason.KEYS, f"client {other}")
        outgoing, incoming = stages.seal_keys(common, state.root, me, other)
        envelopes.append(crypto.seal(outgoing, b"".join(both), state.root))
        sealed.append(outgoing)
        seals.append(incoming)
    tags = [crypto.tag(share) for both in zip(of_seed, of_key, strict=True) for share in both]
    state = state._replace(seals=b"".join(seals), sealed=b"".join(sealed))
    return state, wire.join([b"".join(envelopes), b"".join(tags)])


def _shares(secret: bytes, windows: tuple[tuple[int, ...], ...], quorum: int) -> list[bytes]:
    """A share for each neighbour; with two windows both halves are needed."""
    halves = crypto.split_seed(secret, len(windows), len(windows))
    pairs = zip(halves, windows, strict=True)
    return [s for half, window in pairs for s in crypto.split_seed(half, quorum, len(window))]


def _mask(
    state: State, session: Session, fields: list[bytes], member: Member, release: Release | None
) -> tuple[State, bytes]:
    if session.recover:
        state, graph, shared = _open(state, session, fields, member)
    else:
        state, graph, _keys = _admit(state, session, fields, member)
        shared = set(graph.order)
    me, neighbours = member.number, graph.neighbours(member.number)
    secrets = secrets_of(state.secrets, session)
    public = wire.pieces(state.masks, KEY, len(neighbours))
    masking, masks = secrets.masking, dict(zip(neighbours, public, strict=True))
    keys = {}
    for other in shared.intersection(neighbours):
        common = member.agree(masking, masks[other])
        if common is None:
            raise DistrustError(Reason.KEYS, f"client {other}")
        keys[other] = stages.mask_key(common, state.root, me, other)
    if release is None:
        raise TypeError("the mask stage needs a release")
    x = np.asarray(release())
    if x.dtype != np.int64 or x.shape != (session.length,):
        raise TypeError(f"a release must be {session.length} int64, not {x.shape} {x.dtype}")
    y = x.astype(np.uint64)  # modulo 2^64, as all that follows
    if session.recover:
        y += crypto.stream(stages.self_key(secrets.seed, state.root), session.length)
    for other, key in keys.items():
        (np.add if other < me else np.subtract)(y, crypto.stream(key, session.length), out=y)
    outgoing = wire.pieces(state.sealed, KEY, len(neighbours) if session.recover else 0)
    confirmations = [stages.confirmation(key, state.shared) for key in outgoing]
    return state, wire.join([wire.vector(y), b"".join(confirmations)])


def _open(
    state: State, session: Session, fields: list[bytes], member: Member
) -> tuple[State, Graph, set[int]]:
    """Check who has shared, and open what they sent.

    An envelope that does not open is its sender's loss: its mask is added all the same, and if it
    vanishes there is one share less to do without it.
    """
    trust(len(fields) == 2, Reason.MALFORMED)
    roster = wire.read_integers(state.roster)
    shared = set(wire.read_bitmap(roster, fields[0]))
    trust(member.number in shared and len(shared) >= session.threshold, Reason.ROSTER)
    graph = draw(state.root, roster, session.window)
    _check_windows(graph, session, member, shared, Reason.ROSTER)  # before anything is drawn
    neighbours = graph.neighbours(member.number)
    seals = wire.pieces(state.seals, KEY, len(neighbours))
    senders = [other for other in neighbours if other in shared]
    sent = wire.pieces(fields[1], 2 * SEED + SEALED, len(senders))
    envelopes, held = dict(zip(senders, sent, strict=True)), b""
    for other, key in zip(neighbours, seals, strict=True):
        both = crypto.unseal(key, envelopes[other], state.root) if other in envelopes else None
        held += bytes(HELD) if both is None else b"\1" + both
    return state._replace(shared=fields[0], held=held), graph, shared


def _check_windows(
    graph: Graph, session: Session, member: Member, left: set[int], reason: Reason
) -> None:
    """Refuse a list that leaves this client with too few neighbours on one side."""
    for window in graph.windows(member.number):
        count = len(left.intersection(window))
        trust(count >= session.quorum, reason, f"{count} of my neighbours on one side")


def _sign(
    state: State, session: Session, fields: list[bytes], member: Member, _: Release | None
) -> tuple[State, bytes]:
    trust(len(fields) == 1, Reason.MALFORMED)
    roster = wire.read_integers(state.roster)
    survivors = set(wire.read_bitmap(roster, fields[0]))
    shared = set(wire.read_bitmap(roster, state.shared))
    right = survivors <= shared and member.number in survivors
    trust(right and len(survivors) >= session.threshold, Reason.SURVIVORS)
    graph = draw(state.root, roster, session.window)
    _check_windows(graph, session, member, survivors, Reason.SURVIVORS)
    message = stages.survivors_message(state.root, state.shared, fields[0])
    return state._replace(survivors=fields[0]), crypto.sign(member.key, message)


def _unmask(
    state: State, session: Session, fields: list[bytes], member: Member, _: Release | None
) -> tuple[State, bytes]:
    trust(len(fields) == 3, Reason.MALFORMED)
    roster = wire.read_integers(state.roster)
    survivors = set(wire.read_bitmap(roster, state.survivors))
    signers = wire.read_integers(fields[0], len(survivors))
    signatures = wire.split(fields[1], len(signers))
    right = set(signers) <= survivors and len(set(signers)) == len(signers)
    trust(right and len(signers) >= session.signers(len(roster)), Reason.SIGNATURES)
    message = stages.survivors_message(state.root, state.shared, state.survivors)
    for other, signature in zip(signers, signatures, strict=True):
        signed = crypto.signed(member.peers[other], signature, message)
        trust(signed, Reason.SIGNATURES, f"client {other}")
    neighbours = draw(state.root, roster, session.window).neighbours(member.number)
    k, shares = len(neighbours), b""
    held, seals = wire.pieces(state.held, HELD, k), wire.pieces(state.seals, KEY, k)
    told = wire.pieces(fields[2], SEALED, k)
    for other, both, key, word in zip(neighbours, held, seals, told, strict=True):
        alive = other in survivors
        agrees = not alive or compare_digest(word, stages.confirmation(key, state.shared))
        share = both[1 : 1 + SEED] if alive else both[1 + SEED :]
        shares += both[:1] + share if agrees else bytes(1 + SEED)
    return state, wire.join([secrets_of(state.secrets, session).seed, shares])


_LATER = {Stage.SHARE: _share, Stage.MASK: _mask, Stage.SIGN: _sign, Stage.UNMASK: _unmask}
