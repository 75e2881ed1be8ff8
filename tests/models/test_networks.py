"""Deep models: per-record gradients against autograd, their transform, what is refused."""

import copy
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from fedsofim.core.errors import ConfigError
from fedsofim.core.linalg import inverse_root
from fedsofim.models import modules
from fedsofim.models import networks as deep
from fedsofim.models.layers import transformed
from fedsofim.models.records import Factors
from fedsofim.transforms.kfc import KFC

CLASSES = 3


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Twice(nn.Module):
    """Uses one layer two times, and a linear layer on sequences."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(6, 6)
        self.out = nn.Linear(6, CLASSES, bias=False)

    def forward(self, x):
        x = x.flatten(1, 2).transpose(1, 2)  # (N, W, C H)
        x = torch.tanh(self.mix(torch.tanh(self.mix(x))))
        return self.out(x).mean(dim=1)


class Sentence(nn.Module):
    """Token vectors with a norm, whose tokens come more than once; 0 is padding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4, padding_idx=0)
        self.norm = nn.GroupNorm(2, 4)
        self.mix = nn.Linear(4, 12)
        self.out = nn.Linear(12, CLASSES)

    def forward(self, x):
        h = self.norm(self.embedding(x.long()).transpose(1, 2)).transpose(1, 2)
        return self.out(torch.tanh(self.mix(h)).mean(dim=1))


MODULES = {
    "cnn": lambda: modules.cnn((2, 8, 8), CLASSES, 3, 2, "tanh"),
    "wide cnn": lambda: modules.cnn((2, 8, 8), CLASSES, 40, 3, "tanh"),  # Gram sums as well
    "mlp": lambda: modules.mlp((2, 8, 8), CLASSES, 5, 2, "relu"),
    "no bias, odd shapes": lambda: nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 2, padding="same"),
        nn.Tanh(),
        nn.Conv2d(3, 3, 3, padding="valid", bias=False),
        nn.Flatten(),
        nn.LazyLinear(CLASSES, bias=False),
    ),
    "resnet": lambda: modules.resnet((2, 8, 8), CLASSES, 4, 1, 2),
    "text": lambda: modules.TextClassifier(6, CLASSES, 5, 4),
    "sentence": Sentence,
    "twice": Twice,
}
TOKENS = {"text", "sentence"}
# It takes no ReLU in place, and gives an embedding's padding a gradient, where torch gives none.
NOT_OPACUSS = {"no bias, odd shapes", "sentence"}


def make(name, n=7, seed=0, **more):
    """A network in float64 with records and parameters."""
    rng = np.random.default_rng(seed)
    shape = {"twice": (2, 3, 4), "text": (9,), "sentence": (9,)}.get(name, (2, 8, 8))
    x = rng.integers(0, 6, (n, *shape)) if name in TOKENS else rng.standard_normal((n, *shape))
    module = MODULES[name]()
    module(torch.zeros(2, *shape))  # gives lazy layers their shape
    tokens = 6 if name in TOKENS else 0
    network = deep.DeepNetwork(module.double(), CLASSES, 3, vocabulary=tokens, **more)
    records = network.records(x.astype(float), rng.integers(0, CLASSES, n))
    theta = network.init(rng).astype(np.float64)
    return network, records, theta + 0.1 * rng.standard_normal(theta.shape)  # no norm is trivial


def microbatches(network, records, theta):
    """Each record's gradient, by a loop over records and plain autograd, by parameter."""
    found = []
    for x, y in zip(records.x, records.y, strict=True):
        values = network.named(network.matrices(theta))
        values = {k: v.detach().clone().requires_grad_() for k, v in values.items()}
        logits = torch.func.functional_call(network.module, values, (x[None],))
        nn.functional.cross_entropy(logits, y[None]).backward()
        found.append({k: v.grad for k, v in values.items()})
    return {k: torch.stack([one[k] for one in found]) for k in found[0]}


def by_name(network, gradients):
    """Gradients as a matrix a layer, by parameter."""
    records = [network.named([g[i] for g in gradients]) for i in range(len(gradients[0]))]
    return {k: torch.stack([one[k] for one in records]) for k in records[0]}


def some_factors(network, seed=0):
    """Random symmetric factors for every layer, as matrices and as broadcast."""
    rng = np.random.default_rng(seed)

    def root(d):
        x = rng.standard_normal((d, 2 * d)) * np.geomspace(1, 0.1, d)[:, None]
        return inverse_root(x @ x.T, 1e-2)

    pairs, flat = [], ([], [])
    for layer in network.layers.values():
        U_G, U_A = (root(d) for d in layer.shape)
        if layer.diagonal:
            U_A = np.diag(np.diag(U_A))
        pairs.append((U_G, U_A))
        flat[0].append(U_G.ravel())
        flat[1].append(np.diag(U_A) if layer.diagonal else U_A.ravel())
    return pairs, Factors(*map(np.concatenate, flat))


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_each_records_gradients_are_autograds(name):
    network, records, theta = make(name)
    ours = by_name(network, records.gradients(theta))
    expected = microbatches(network, records, theta)
    assert ours.keys() == expected.keys() == dict(network.module.named_parameters()).keys()
    for key, g in ours.items():
        assert g.abs().max() > 0
        torch.testing.assert_close(g, expected[key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("kfc", [False, True])
def test_ghost_norms_are_those_of_the_gradients(name, kfc):
    """Layer by layer, with no gradient of a single record where it would cost more."""
    network, records, theta = make(name)
    U = records.with_transform(some_factors(network)[1]).factors if kfc else [None] * 99
    point = network.at(theta)
    passes = network.passes(point, records.x, records.y)
    whole = network.gradients(theta, records.x, records.y)
    w = torch.linspace(0.1, 1, records.size, dtype=torch.float64)
    layers = zip(network.layers.values(), point.matrices, passes, U, whole, strict=False)
    for layer, matrix, calls, pair, g in layers:
        ours, bent = layer.gradients(calls, matrix, pair), transformed(g, pair)
        square = bent.flatten(1).square().sum(dim=1)
        torch.testing.assert_close(ours.squares, square, rtol=1e-9, atol=1e-18)
        total = torch.ones_like(matrix)
        ours.add(w, total)
        expected = 1 + torch.tensordot(w, g if ours.plain else bent, dims=1)
        torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODULES)
def test_each_layers_transformed_gradient_is_the_explicit_product(name):
    network, records, theta = make(name)
    pairs, factors = some_factors(network)
    plain = records.gradients(theta)
    ours = records.with_transform(factors).gradients(theta)
    for g, before, (U_G, U_A) in zip(ours, plain, pairs, strict=True):
        for one, other in zip(g, before, strict=True):
            product = U_G @ other.numpy() @ U_A
            np.testing.assert_allclose(one.numpy(), product, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", [m for m in MODULES if m not in NOT_OPACUSS])
@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("clip", [0.3, 3.0])
def test_clipped_sums_are_opacuss(name, clip):
    """Its gradients of single records, in float64, clipped here."""
    GradSampleModule = pytest.importorskip("opacus").GradSampleModule
    network, records, theta = make(name)
    theirs = copy.deepcopy(network.module).train()
    theirs.load_state_dict(network.named(network.matrices(theta)))
    theirs = GradSampleModule(theirs, loss_reduction="sum")
    nn.functional.cross_entropy(theirs(records.x), records.y, reduction="sum").backward()
    grads = [p.grad_sample for p in theirs.parameters()]
    norm = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
    weight = (clip / norm).clamp(max=1)
    assert clip > 1 or (weight < 1).any()
    S = torch.as_tensor(records.gradient_sum(theta, clip).value)
    ours = network.named(network.matrices(S.numpy()))
    for (key, _), g in zip(network.module.named_parameters(), grads, strict=True):
        expected = torch.tensordot(weight, g, dims=1)
        torch.testing.assert_close(ours[key], expected, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("clip", [0.05, 1.0, math.inf])
@pytest.mark.parametrize("kfc", [False, True])
def test_one_clip_over_all_layers(name, kfc, clip):
    network, records, theta = make(name, n=11)
    if kfc:
        records = records.with_transform(some_factors(network)[1])
    whole = records.gradients(theta)
    flat = torch.cat([g.flatten(1) for g in whole], dim=1).numpy()
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    expected = (flat * np.minimum(1, clip / norm)).sum(axis=0)
    S = records.gradient_sum(theta, clip).value
    assert S.shape == theta.shape == (1, network.size)
    np.testing.assert_allclose(S[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "cnn", "twice"])
def test_norms_that_are_known_are_those_of_these_records_under_these_factors(name):
    """Rounds with old factors, new ones, some of the records, and other parameters."""
    network, records, theta = make(name, n=11)
    old, new = (some_factors(network, seed)[1] for seed in (0, 1))
    mixed = Factors(new.U_G, old.U_A)  # what a refresh leaves of the first layer
    kept = records
    for step, factors in enumerate((old, old, mixed, new, old)):
        kept = kept.with_transform(factors)
        theta = theta + 0.1 * step
        for which in (slice(None), slice(0, 10, 2), slice(0, 5), np.array([9, 3, 0])):
            ours = kept.part(which).gradient_sum(theta, 0.1).value
            fresh = network.records(records.x[which].numpy(), records.y[which].numpy())
            expected = fresh.with_transform(factors).gradient_sum(theta, 0.1).value
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)
    seen = [bool(U.known) for U in kept.factors]
    assert seen == [name == "mlp"] + [False] * (len(seen) - 1)


@pytest.mark.parametrize("name", ["cnn", "wide cnn", "resnet"])
@pytest.mark.parametrize("seed", range(4))
def test_replacing_a_record_moves_the_sum_by_at_most_2c(name, seed):
    network, records, theta = make(name, n=6, seed=seed)
    rng = np.random.default_rng(seed)
    other = records.x.clone()
    other[2] = torch.as_tensor(rng.standard_normal(other.shape[1:]) * 10.0 ** rng.integers(-3, 4))
    neighbour = network.records(other.numpy(), records.y.numpy())
    factors = some_factors(network, seed)[1]
    a, b = (r.with_transform(factors).gradient_sum(theta, 0.1).value for r in (records, neighbour))
    assert np.linalg.norm(a - b) <= 0.2 * (1 + 1e-9)


def test_a_record_that_is_not_finite_contributes_nothing():
    network, records, theta = make("cnn", n=6)
    x = records.x.clone()
    x[2] = torch.inf
    rest = [0, 1, 3, 4, 5]
    broken = network.records(x.numpy(), records.y.numpy())
    clean = network.records(x[rest].numpy(), records.y[rest].numpy())
    np.testing.assert_allclose(
        broken.gradient_sum(theta, 0.1).value, clean.gradient_sum(theta, 0.1).value, rtol=1e-9
    )


def test_a_record_that_is_huge_does_not_exceed_its_clip():
    """The weight that would clip it has few digits left, and was rounded up by a third."""
    network = deep.DeepNetwork(nn.Linear(1, 2, bias=False), 2)
    theta = np.array([[0.5, -0.5]], np.float32)
    for size in np.geomspace(1e30, 3.3e38, 100):
        record = network.records(np.array([[size]], np.float32), np.array([1]))
        S = record.gradient_sum(theta, 1e-6).value.astype(float)
        assert np.linalg.norm(S) <= 1e-6


def test_microbatches_change_memory_and_not_results():
    network, records, theta = make("cnn", n=11)
    large = deep.DeepNetwork(network.module, CLASSES, microbatch=100)
    other = large.records(records.x.numpy(), records.y.numpy())
    np.testing.assert_allclose(
        records.gradient_sum(theta, 0.1).value, other.gradient_sum(theta, 0.1).value, rtol=1e-10
    )
    assert records.evaluate(theta) == pytest.approx(other.evaluate(theta))


def test_a_network_without_hidden_layers_is_the_linear_head():
    from fedsofim.models import head

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((30, 5)), rng.integers(0, CLASSES, 30)
    network = deep.DeepNetwork(modules.mlp((5,), CLASSES, 1, 0, "tanh").double(), CLASSES)
    theta = network.init(rng).astype(np.float64)
    ours, theirs = network.records(x, y), head.examples(x, y, CLASSES)
    square = theta.reshape(CLASSES, 6)
    for a, b in zip(ours.curvature(theta)[0], theirs.curvature(square)[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    factors = KFC(damping=1e-3).factors(theirs.curvature(square))
    for clip in (0.3, math.inf):
        np.testing.assert_allclose(
            ours.with_transform(factors).gradient_sum(theta, clip).value.reshape(square.shape),
            theirs.with_transform(factors).gradient_sum(square, clip).value,
            rtol=1e-6,
        )
    assert ours.evaluate(theta) == pytest.approx(theirs.evaluate(square))


@pytest.mark.parametrize("name", ["cnn", "mlp", "no bias, odd shapes"])
def test_whitened_layers_have_the_identity_as_covariance(name):
    """With a record's gradient of rank one, U_G and U_A whiten its two sides."""
    network, records, theta = make(name, n=40)
    layers = records.curvature(theta)
    for (rows, columns), (G, A) in zip(network.shapes, layers, strict=True):
        assert G.shape == (rows, rows)
        assert A.shape == (columns, columns)
        for C in (G, A):
            U = inverse_root(C, 1e-3)
            eigenvalues, Q = np.linalg.eigh(C)
            damped = eigenvalues / (eigenvalues + 1e-3 * eigenvalues[-1])
            np.testing.assert_allclose(U @ C @ U, (Q * damped) @ Q.T, atol=1e-8)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), "1: BatchNorm2d"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)), "1: BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "1: Dropout"),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "not so: 1: LayerNorm"),
        (nn.Sequential(nn.Embedding(9, 4, max_norm=1.0)), "0: Embedding"),
        (nn.Sequential(nn.Embedding(9, 4, scale_grad_by_freq=True)), "0: Embedding"),
        (nn.Conv2d(4, 4, 3, groups=2), "the module itself: Conv2d"),
        (nn.Conv2d(4, 4, 3, padding_mode="circular"), "Conv2d"),
        (nn.ReLU(), "no layer with parameters"),
    ],
)
def test_layers_that_do_not_fit_are_named(module, told):
    with pytest.raises(ConfigError, match=told):
        deep.DeepNetwork(module, CLASSES)


def test_tied_weights_are_refused():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    with pytest.raises(ConfigError, match=r"1: Linear \(shares its parameters\)"):
        deep.DeepNetwork(module, CLASSES)


def moved(a, b):
    """The squared distance of two integer arrays, exactly."""
    return sum((int(p) - int(q)) ** 2 for p, q in zip(a.ravel(), b.ravel(), strict=True))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bent", [False, True])
def test_an_exact_sum_moves_by_no_more_than_is_charged(seed, bent):
    network, records, theta = make("cnn", n=6, seed=seed)
    rng = np.random.default_rng(seed)
    other = records.x.clone()
    scale = rng.choice([0, 1e-3, 1, 1e4, 1e200, np.inf, np.nan])
    other[2] = torch.as_tensor(rng.standard_normal(other.shape[1:]) * scale)
    pair = [records, network.records(other.numpy(), records.y.numpy())]
    if bent:
        pair = [r.with_transform(some_factors(network, seed)[1]) for r in pair]
    a, b = (r.gradient_sum(theta, 0.1, True) for r in pair)
    assert moved(a.value, b.value) <= (2 * int(a.bound)) ** 2
    fast = pair[0].gradient_sum(theta, 0.1).value
    assert np.abs(a.value * a.unit - fast).max() <= 1e-6


def test_a_fast_norm_leaves_room_for_rounding():
    """In float32 no single record exceeds its clip, however many numbers it has."""
    rng = np.random.default_rng(0)
    network = deep.DeepNetwork(modules.mlp((2, 8, 8), CLASSES, 500, 1, "relu"), CLASSES)
    theta = network.init(rng)
    for seed in range(40):
        x = np.random.default_rng(seed).standard_normal((1, 2, 8, 8)).astype(np.float32)
        S = network.records(x, np.array([seed % CLASSES])).gradient_sum(theta, 0.1).value
        assert 0.0999 < np.linalg.norm(S.astype(float)) <= 0.1
