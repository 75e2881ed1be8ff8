"""Stages before the first round: what they release, what it costs, and what is made of it."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsofim.clients import Client
from fedsofim.clients.group import transformed
from fedsofim.clients.program import release_stage
from fedsofim.core.errors import ConfigError
from fedsofim.models import head
from fedsofim.models.crowd import gradient_sums
from fedsofim.models.head import clipped_gradient_sum
from fedsofim.privacy.exact import ExactNoise
from fedsofim.privacy.mechanism import SeededNoise, seeded
from fedsofim.privacy.plan import Privacy
from fedsofim.strategies.fedfc import SecondMoment
from fedsofim.strategies.ridge import Joint
from fedsofim.strategies.rule import ServerState, for_raw
from fedsofim.strategies.stage import stage_std, symmetric
from fedsofim.transforms.geometry import Centre, Private, Public
from fedsofim.transforms.norms import CentredNorms, Norms
from fedsofim.transforms.stages import (
    Covariance,
    Geometry,
    Mean,
    affine,
    public_statistics,
    shrunk,
    whitening,
)

F, K = 5, 3
MEAN, SIGNED = Mean(share=0.03, radius=2.0, nonnegative=True), Mean(share=0.03, radius=2.0)
COVARIANCE = Covariance(share=0.07, radius=1.5)
MOMENT = SecondMoment(share=0.05, bound=1.5, gamma=1.0)
JOINT = Joint(share=0.5, radius=1.5, alpha=0.8)
NORMS = Norms(share=0.01)
STAGES = {"mean": MEAN, "signed": SIGNED, "covariance": COVARIANCE, "moment": MOMENT}
STAGES |= {"joint": JOINT, "norms": NORMS, "centred": CentredNorms(share=0.01, root=True)}
ODD = [0.0, 1e-30, 1.0, 3e38, -1.0, np.inf, -np.inf, np.nan]


def plan_for(*shares, adjacency="replace-one", epsilon=1.0, rounds=20):
    privacy = Privacy(epsilon=epsilon, delta=1e-5, clip=1.0, adjacency=adjacency)
    return privacy.plan(releases=rounds, clients=4, aggregation="size", shares=shares)


def data_of(x, y=0):
    x = np.asarray(x, np.float32).reshape(-1, F)
    return head.examples(x, np.zeros(len(x), int) + np.asarray(y), K)


def moved(stage, one, other, exact):
    """How far two data sets' sums are apart, each sum in its own bound; integers exactly."""
    total = 0.0
    pairs = zip(stage.summed(one, exact), stage.summed(other, exact), strict=True)
    for a, b in pairs:
        gap = a.value.astype(object) - b.value.astype(object) if exact else a.value - b.value
        total += float(sum(int(g) ** 2 for g in gap) if exact else (gap**2).sum()) / a.bound**2
    return math.sqrt(total)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(STAGES)), st.integers(0, 2**32), st.integers(1, 9), st.booleans())
def test_no_record_moves_a_stage_beyond_what_is_charged(name, seed, n, hostile):
    """Whatever the records and the server's map are; in exact integers for what is deployed."""
    stage, rng = STAGES[name], np.random.default_rng(seed)
    x = rng.normal(size=(n, F)) * 10.0 ** rng.integers(-3, 4)
    new = rng.choice(ODD, F) if hostile else rng.normal(size=F) * 10.0 ** rng.integers(-3, 4)
    P = (rng.normal(size=(F + 1, F + 1)) * 10.0 ** rng.integers(-9, 30)).astype(np.float32)
    received = {"P": P} if rng.random() < 0.7 and stage.reads else {}
    y, other = rng.integers(0, K, n), rng.integers(0, K, 1)
    sets = [
        data_of(x, y),
        data_of(np.concatenate([new[None], x[1:]]), np.concatenate([other, y[1:]])),
        data_of(x[1:], y[1:]),
    ]
    clients = transformed([Client(i, s) for i, s in enumerate(sets)], received)
    whole, replaced, removed = (client.data for client in clients)
    for exact, slack in ((True, 1e-12), (False, 1e-4)):
        most = stage.unit_sensitivity("replace-one")
        assert moved(stage, whole, replaced, exact) <= most * (1 + slack)
        most = stage.unit_sensitivity("add-remove")
        assert moved(stage, whole, removed, exact) <= most * (1 + slack)


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("mean", ([9, 0, 0, 0, 0], [0, 9, 0, 0, 0])),
        ("signed", ([9, 0, 0, 0, 0], [-9, 0, 0, 0, 0])),
        ("covariance", ([9, 9, 0, 0, 0], [9, -9, 0, 0, 0])),
        ("covariance", ([9, 0, 0, 0, 0], [0, 0, 9, 0, 0])),
        ("moment", ([9e9, 9e9, 0, 0, 0], [9e9, -9e9, 0, 0, 0])),
        ("norms", ([3, 0, 0, 0, 0], [0, 5, 0, 0, 0])),
    ],
)
def test_the_worst_pair_moves_a_stage_by_all_that_is_charged(name, pair):
    stage, sets = STAGES[name], [data_of(row) for row in pair]
    for exact in (True, False):
        most = stage.unit_sensitivity("replace-one")
        assert moved(stage, *sets, exact) == pytest.approx(most, rel=1e-4)


@pytest.mark.parametrize("alpha", [0.1, 0.8, 1.0, math.sqrt(2)])
@pytest.mark.parametrize("labels", [(0, 0), (0, 1)])
def test_the_worst_pairs_of_the_joint_release(alpha, labels):
    """Of one class at cosine -alpha^2 / 2, and of two classes at a right angle."""
    stage = Joint(share=0.5, radius=1.5, alpha=alpha)
    t = -(alpha**2) / 2 if labels == (0, 0) else 0.0
    rows = [9e3, 0, 0, 0, 0], [9e3 * t, 9e3 * math.sqrt(max(0, 1 - t * t)), 0, 0, 0]
    one, other = (data_of(row, y) for row, y in zip(rows, labels, strict=True))
    nobody = data_of(np.zeros((0, F)))
    for exact in (True, False):
        for pair, adjacency in (((one, other), "replace-one"), ((one, nobody), "add-remove")):
            most = stage.unit_sensitivity(adjacency)
            assert moved(stage, *pair, exact) == pytest.approx(most, rel=1e-4)
            assert not exact or moved(stage, *pair, exact) <= most


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("name", STAGES)
def test_measured_noise_is_that_of_the_plan(name, adjacency):
    """Each number carries noise in proportion to its sum's bound; 2/3 and 3/2 of it are told."""
    stage, n = STAGES[name], 400
    told = plan_for(0.03, stage.share, adjacency=adjacency)
    clients = [Client(i, data_of(np.zeros((8, F)))) for i in range(n)]
    rng = np.random.default_rng(0)
    noise = lambda *_: SeededNoise(np.random.default_rng(rng.integers(2**63)))  # noqa: E731
    released = release_stage(stage, -1, clients, {}, told, noise) * 8
    base = np.concatenate([S.value for S in stage.summed(clients[0].data, False)])
    bounds = [np.full(len(S.value), S.bound) for S in stage.summed(clients[0].data, False)]
    mu = told.stage_events()[-1].mu
    measured = np.std((released - base) / np.concatenate(bounds))
    expected = stage.unit_sensitivity(adjacency) / mu
    assert measured == pytest.approx(expected, rel=0.06)
    assert measured != pytest.approx(expected * 2 / 3, rel=0.06)
    assert measured != pytest.approx(expected * 3 / 2, rel=0.06)
    sizes = np.full(n, 8)
    first = len(stage.summed(clients[0].data, False)[0].value)
    mean = (released / 8).mean(axis=0)[:first] - base[:first] / 8
    assert np.std(mean) == pytest.approx(stage_std(stage, -1, told, sizes, "size"), rel=0.9)


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
@pytest.mark.parametrize("name", STAGES)
def test_a_simulation_draws_the_noise_of_all_clients_at_once(rng, name, epsilon):
    """To the last bit what clients draw one by one, each from its own stream."""
    stage, told = STAGES[name], plan_for(STAGES[name].share, epsilon=epsilon)
    clients = [Client(i, data_of(rng.normal(size=(n, F)))) for i, n in [(7, 3), (0, 90), (3, 1)]]
    received = {"P": affine(np.eye(F) / 3, np.ones(F))} if stage.reads else {}
    together = release_stage(stage, -1, clients, received, told, seeded(5, -1))
    alone = release_stage(stage, -1, clients, received, told, lambda *key: seeded(5, -1)(*key))
    np.testing.assert_array_equal(together, alone)
    assert together.dtype == alone.dtype == np.float32
    other = release_stage(stage, -1, clients, received, told, seeded(5, -2))
    assert (together == other).all() == (epsilon == math.inf)


def test_a_client_without_records_is_refused_by_name():
    nobody = [Client(0, data_of(np.ones((2, F)))), Client(4, data_of(np.zeros((0, F))))]
    for noise in (seeded(0, -1), lambda *_: ExactNoise()):
        with pytest.raises(ConfigError, match="client 4 holds no records"):
            release_stage(MEAN, -1, nobody, {}, plan_for(0.03), noise)


def test_a_deployed_clients_noise_is_that_of_the_plan():
    told, one = plan_for(0.07), Client(0, data_of(np.zeros((8, F))))
    released = np.concatenate(
        [
            release_stage(COVARIANCE, -1, [one], {}, told, lambda *_: ExactNoise())[0][:F]
            for _ in range(80)
        ]
    )
    expected = COVARIANCE.scale * math.sqrt(2) / told.stage_events()[0].mu
    assert np.std(released * 8) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("epsilon", [0.5, 10.0])
def test_dp_accounting_agrees_that_stages_and_rounds_keep_the_budget(epsilon):
    accountant = PLDAccountant()
    for event in plan_for(0.03, 0.07, epsilon=epsilon).events():
        accountant.compose(GaussianDpEvent(event.std / event.sensitivity), int(event.count))
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize("name", STAGES)
def test_an_attacker_who_knows_the_pair_guesses_no_better_than_claimed(name):
    """The best test between neighbours is the projection on their difference: it has power mu."""
    stage, told = STAGES[name], plan_for(STAGES[name].share, epsilon=5.0)
    pair = {
        "mean": ([9, 0, 0, 0, 0], [0, 9, 0, 0, 0]),
        "signed": ([9, 0, 0, 0, 0], [-9, 0, 0, 0, 0]),
        "norms": ([3, 0, 0, 0, 0], [5, 0, 0, 0, 0]),
        "centred": ([3, 0, 0, 0, 0], [5, 0, 0, 0, 0]),
    }.get(name, ([9e9, 9e9, 0, 0, 0], [9e9, -9e9, 0, 0, 0]))
    sets, count = [data_of(row) for row in pair], 2000
    rng = np.random.default_rng(1)
    noise = lambda *_: SeededNoise(np.random.default_rng(rng.integers(2**63)))  # noqa: E731
    sums = [stage.summed(s, False) for s in sets]
    weights = np.concatenate([(a.value - b.value) / a.bound**2 for a, b in zip(*sums, strict=True)])
    seen = [
        release_stage(stage, -1, [Client(i, s) for i in range(count)], {}, told, noise) @ weights
        for s in sets
    ]
    measured = (seen[0].mean() - seen[1].mean()) / np.std(
        np.concatenate([s - s.mean() for s in seen])
    )
    claimed = told.stage_events()[-1].mu
    assert claimed * 0.75 < measured < claimed * 1.25 + 0.05


def test_a_mapped_record_does_not_depend_on_its_neighbours(rng):
    x, P = rng.normal(size=(700, F)), rng.normal(size=(F + 1, F + 1)).astype(np.float32)
    whole = data_of(x).through(P)
    for n in (1, 3, 17, 699):
        np.testing.assert_array_equal(data_of(x[-n:]).through(P).x, whole.x[:, -n:])
    np.testing.assert_allclose(whole.x, P @ data_of(x).x, rtol=1e-4, atol=1e-5)
    assert whole.through(P) is whole
    np.testing.assert_array_equal(whole.through(None).x, data_of(x).x)
    np.testing.assert_array_equal(whole.through(2 * P).x, data_of(x).through(2 * P).x)


@pytest.mark.parametrize("turns", [True, False])
@pytest.mark.parametrize("heads", [(), (3,)], ids=["one", "stack"])
def test_records_seen_through_a_map_give_what_mapped_ones_give(rng, turns, heads):
    """Whichever map they came from, with the bits of each alone; no record is changed or copied."""
    sizes = [30, 1, 0, 200]
    data = [data_of(rng.normal(size=(n, F))) for n in sizes]
    before = [D.x.copy() for D in data]
    clients = [Client(i, D) for i, D in enumerate(data)]
    thetas = rng.normal(size=(len(data), *heads, K, F + 1)).astype(np.float32)
    for scale in (1.0, 2.0):
        P = affine(scale * (rng.normal(size=(F, F)) if turns else np.eye(F)), np.ones(F))
        clients = transformed(clients, {"P": P}, exact=False)
        seen = [c.data for c in clients]
        for C in (0.7, math.inf):
            for shared in (thetas, np.broadcast_to(thetas[0], thetas.shape)):
                sums = gradient_sums(shared, seen, C)
                for theta, D, s, S in zip(shared, data, seen, sums, strict=True):
                    mapped = D.through(P)
                    expected = clipped_gradient_sum(theta.astype(float), in_double(mapped), C)
                    np.testing.assert_allclose(S, expected, rtol=1e-3, atol=2e-4 * (1 + D.size))
                    np.testing.assert_array_equal(S, s.gradient_sum(theta, C).value)
                    assert s.x is D.x
                    assert s.target is D.target
        whole, part = seen[3], seen[3].part(slice(10, 50))
        assert part.transformed.P is whole.transformed.P
        np.testing.assert_array_equal(part.transformed.norm, whole.transformed.norm[10:50])
        np.testing.assert_allclose(
            whole.logits(thetas[3]), data[3].through(P).logits(thetas[3]), rtol=1e-3, atol=1e-3
        )
        exact = whole.gradient_sum(thetas[3], 0.7, exact=True) if not heads else None
        if exact is not None:
            told = data[3].through(P).gradient_sum(thetas[3], 0.7, exact=True)
            np.testing.assert_array_equal(exact.value, told.value)
        again = transformed(clients, {"P": P.copy()}, exact=False)
        assert all(a.data is b.data for a, b in zip(again, clients, strict=True))
    for D, x in zip(data, before, strict=True):
        np.testing.assert_array_equal(D.x, x)
    raw = transformed(clients, {}, exact=False)
    assert all(
        c.data.x is D.x and c.data.transformed is None for c, D in zip(raw, data, strict=True)
    )


def in_double(D):
    return D._replace(
        x=D.x.astype(float), target=D.target.astype(float), norm=D.norm.astype(float), raw=None
    )


def test_the_folded_model_says_the_same_of_raw_records(rng):
    x = rng.normal(3, 1, size=(300, F))
    P = affine(rng.normal(size=(F, F)), x.mean(axis=0))
    theta = rng.normal(size=(K, F + 1)).astype(np.float32)
    raw, mapped = data_of(x), data_of(x).through(P)
    np.testing.assert_allclose(for_raw(theta, Geometry(P)) @ raw.x, theta @ mapped.x, atol=2e-4)


def folded(stages, x, std=0.0):
    """The map that stages make of records without noise, which they are told to reckon with."""
    state = ServerState(np.zeros((K, F + 1), np.float32), (), -2, Geometry(np.eye(F + 1)))
    for stage in stages:
        data = data_of(x).through(state.shared.P.astype(np.float32)) if stage.reads else data_of(x)
        G = np.concatenate([S.value for S in stage.summed(data, False)]) / len(x)
        state = stage.fold(state, G, std)
    return data_of(x).through(state.shared.P)


def test_without_noise_records_are_centred_and_white(rng):
    x = 4 + rng.normal(size=(4000, F)) @ rng.normal(size=(F, F))
    stages = Private(radius=60.0, nonnegative=False).stages
    z = folded(stages, x).x[:-1].astype(float)
    np.testing.assert_allclose(z.mean(axis=1), 0, atol=1e-3)
    np.testing.assert_allclose(np.cov(z, bias=True), np.eye(F), atol=2e-2)
    (centre,) = Centre(radius=1e3, centred_radius=7.0).stages
    c = folded([centre], x).x[:-1]
    np.testing.assert_allclose(c.T, (x - x.mean(axis=0)) * math.sqrt(F) / 7, atol=1e-3)


def test_whitening_is_the_inverse_root_of_the_damped_covariance(rng):
    A = rng.normal(size=(8, 8))
    S, std = A @ A.T, 0.3
    U = whitening(S, std, 100.0)
    lam = std * math.sqrt(16) + 1e-4 * np.trace(S) / 8
    shape = U @ (S + lam * np.eye(8)) @ U
    np.testing.assert_allclose(shape / shape[0, 0], np.eye(8), atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_a_covariance_of_pure_noise_only_scales(seed):
    """The noise's spectrum is 6 times the covariance's: records keep a mean square near F."""
    rng, d, std = np.random.default_rng(seed), 60, 0.6
    E = np.triu(rng.normal(size=(d, d)), 1) * std / math.sqrt(2)
    U = whitening(np.eye(d) + E + E.T + np.diag(rng.normal(size=d) * std), std, 9.0)
    assert 0.5 < np.trace(U @ U) / d < 2
    assert np.linalg.cond(U) < 2
    # Without the scale, all that is left of a record is a sixth of it.
    bare = np.linalg.inv(np.linalg.cholesky((1 + std * math.sqrt(2 * d)) * np.eye(d)))
    assert np.trace(bare @ bare.T) / d < 0.2


def test_a_mean_of_pure_noise_is_the_prior(rng):
    prior = rng.normal(size=200)
    assert np.linalg.norm(shrunk(prior + rng.normal(size=200), prior, 1.0) - prior) < 6
    np.testing.assert_allclose(shrunk(prior + 50, prior, 1.0), prior + 50, rtol=0.05)
    np.testing.assert_array_equal(shrunk(prior, prior, 1.0), prior)


def test_public_statistics_fit_the_weights():
    known = public_statistics("resnet20-cifar100")
    assert known.mean.shape == (64,)
    assert np.linalg.eigvalsh(known.covariance).min() > 0
    P = Public(statistics="resnet20-cifar100").first(64)[:64].astype(float)
    second = known.covariance + np.outer(known.mean, known.mean)
    joint = np.block([[second, known.mean[:, None]], [known.mean[None], np.ones((1, 1))]])
    assert np.trace(P @ joint @ P.T) == pytest.approx(64, rel=1e-3)


@pytest.mark.parametrize("name", ["../resnet20-cifar100", "none", "", "/etc/passwd"])
def test_a_server_cannot_name_files(name):
    with pytest.raises(ConfigError, match="there are none"):
        Private(statistics=name)


def test_where_nothing_tells_what_norm_is_usual_it_is_released_first():
    names = [stage.name for stage in Private().stages]
    assert names == ["norms", "mean", "centred norms", "covariance"]
    assert [stage.name for stage in Centre().stages] == ["norms", "mean", "centred norms"]
    assert [stage.name for stage in Private(radius=3.0).stages] == ["mean", "covariance"]
    assert sum(stage.share for stage in Private().stages) == pytest.approx(0.11)
    with pytest.raises(ConfigError, match="give radius as well"):
        Private(centred_radius=3.0)
    with pytest.raises(ConfigError, match="statistics"):
        Public(radius=3.0)
    with pytest.raises(ConfigError, match="radius=0"):
        Private(radius=0.0)


def test_a_triangle_becomes_a_matrix_again(rng):
    S = rng.normal(size=(4, 4))
    S += S.T
    flat = np.concatenate([np.diagonal(S), S[np.triu_indices(4, 1)]])
    np.testing.assert_array_equal(symmetric(flat, 4), S)
