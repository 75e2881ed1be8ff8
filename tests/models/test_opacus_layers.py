"""Layers that are not ours, by Opacus: against autograd record by record, and what is refused."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
nn = torch.nn

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.models.fitting import require_separate
from fedsofim.models.networks import DeepNetwork
from fedsofim.transforms.kfc import KFC

CLASSES = 3


class Recurrent(nn.Module):
    """What an LSTM or a GRU says last, after a layer norm."""

    def __init__(self, kind):
        super().__init__()
        self.inner = kind(4, 5, batch_first=True)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.out(self.norm(self.inner(x)[0][:, -1]))


class Attention(nn.Module):
    """Attention over positions, and a scale that is a parameter of the module's child."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.batch_first = batch_first
        self.inner = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        self.scale = nn.PReLU(4)  # torch.func computes its gradients: it is not linear in them
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x):
        x = x if self.batch_first else x.transpose(0, 1)
        h = self.inner(x, x, x, need_weights=False)[0]
        h = h if self.batch_first else h.transpose(0, 1)
        return self.out(self.scale(h.mean(dim=1)))


MODULES = {
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "attention": Attention,
    "grouped": lambda: nn.Sequential(nn.Conv1d(6, 4, 2, groups=2), nn.Flatten(), nn.Linear(12, 3)),
}


def made(name, **more):
    rng = np.random.default_rng(0)
    network = DeepNetwork(MODULES[name]().double(), CLASSES, 4, opacus=True, **more)
    x, y = rng.standard_normal((7, 6, 4)), rng.integers(0, CLASSES, 7)
    theta = network.init(rng).astype(float)
    theta += 0.1 * rng.standard_normal(theta.shape)
    return network, network.records(x, y), theta


@pytest.mark.parametrize("name", MODULES)
def test_each_records_gradient_is_that_of_the_record_alone(name):
    network, records, theta = made(name)
    ours = records.gradients(theta)
    for i in range(records.size):
        one = slice(i, i + 1)
        alone = network.autograd(theta, records.x[one], records.y[one])
        for g, expected in zip(ours, alone, strict=True):
            torch.testing.assert_close(g[i], expected, rtol=1e-8, atol=1e-11)
    flat = torch.cat([g.flatten(1) for g in ours], dim=1)
    assert network.size == flat.shape[1]
    norm = flat.norm(dim=1, keepdim=True)
    clip = float(norm.median())
    expected = (flat * (clip / norm).clamp(max=1)).sum(dim=0)
    S = records.gradient_sum(theta, clip).value[0]
    np.testing.assert_allclose(S, expected.numpy(), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", MODULES)
def test_kfc_whitens_them_by_their_diagonal(name):
    _, records, theta = made(name)
    factors = KFC(damping=1e-3).factors(records.curvature(theta))
    bent = records.with_transform(factors)
    for g, before, pair in zip(
        bent.gradients(theta), records.gradients(theta), bent.factors, strict=True
    ):
        U_A = torch.diag(pair.A) if pair.A.ndim == 1 else pair.A
        expected = pair.G.double() @ before @ U_A.double()
        torch.testing.assert_close(g, expected, rtol=1e-6, atol=1e-9)
    assert np.isfinite(bent.gradient_sum(theta, 1.0).value).all()


def test_records_that_do_not_come_first_are_found():
    """Six positions of five records: read the wrong way round, no clip would bound a record."""
    for length in (5, 6):  # also where the two numbers are the same
        network = DeepNetwork(Attention(batch_first=False), CLASSES, opacus=True)
        with pytest.raises(ConfigError, match="model: "):
            require_separate(network, (length, 4))
    require_separate(DeepNetwork(Attention(), CLASSES, opacus=True), (5, 4))


class Scaled(nn.Module):
    """A layer of one's own that gives more than a tensor."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.scale, x


class Mixed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(4, CLASSES)

    def forward(self, x):
        h = self.layer(x)
        return self.out(h if isinstance(h, torch.Tensor) else h[0])


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (nn.BatchNorm1d(4), "layer: BatchNorm1d"),
        (nn.Dropout(0.1), "layer: Dropout"),
        (Scaled(), "Scaled takes or gives more than one tensor"),
        (nn.LSTM(4, 4, 2, dropout=0.5), "DPLSTM"),
    ],
)
def test_what_neither_can_do_is_named(layer, told):
    with pytest.raises(ConfigError, match=told):
        require_separate(DeepNetwork(Mixed(layer), CLASSES, opacus=True), (4,))


def test_without_it_the_error_says_who_knows_more():
    with pytest.raises(ConfigError, match=r"layer: LayerNorm") as told:
        DeepNetwork(Mixed(nn.LayerNorm(4)), CLASSES)
    assert "model.grads=opacus knows more" in str(told.value)


class Borrowed(nn.Module):
    """Uses a layer's weight without calling it, so that its hooks see half of the gradient."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.out(torch.tanh(self.layer(x)) @ self.layer.weight)


@pytest.mark.parametrize("opacus", [False, True])
def test_a_weight_that_is_used_without_its_layer_is_found(opacus):
    with pytest.raises(ConfigError, match="gradient in layer is not what it is alone"):
        require_separate(DeepNetwork(Borrowed(), CLASSES, opacus=opacus), (4,))


def test_exact_noise_is_refused():
    with pytest.raises(ConfigError, match=r"privacy\.noise=exact: how Opacus rounds"):
        parse(compose(["model=mlp", "model.grads=opacus", "privacy.noise=exact"]))


class Rarely(nn.Module):
    """What it makes of a record depends on the others where one of them is large."""

    def __init__(self, how):
        super().__init__()
        self.how, self.out = how, nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.out(x + self.how(x))


@pytest.mark.parametrize(
    "how", [lambda x: torch.relu(x.abs().max() - 1000), lambda x: 1e-5 * x.mean(dim=0)]
)
def test_a_large_record_that_moves_the_others_is_found(how):
    with pytest.raises(ConfigError, match="depends on the others"):
        require_separate(DeepNetwork(Rarely(how), CLASSES), (4,))


class Late(nn.Module):
    """Changes what went into a layer after the layer has seen it."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        h = self.layer(x)
        return self.out(h) + h.clamp_(max=5).sum(dim=1, keepdim=True)


def test_a_network_that_changes_a_layers_input_afterwards_is_refused_in_a_line():
    with pytest.raises(ConfigError, match="gradients of its layers cannot be had"):
        require_separate(DeepNetwork(Late(), CLASSES), (4,))
