"""Which numbers can a release be? Of floating-point noise, so few that they name the records."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from fedsofim.clients import Client
from fedsofim.clients.ditto import Ditto
from fedsofim.clients.finetune import FineTune
from fedsofim.clients.gradient import Gradient
from fedsofim.clients.group import transformed
from fedsofim.clients.pfedsop import PFedSOP
from fedsofim.clients.program import release_stage
from fedsofim.clients.scaffold import ScaffoldSteps
from fedsofim.clients.steps import LocalSteps
from fedsofim.clients.tree import Tree
from fedsofim.federation.owner import Owner, Request, Terms
from fedsofim.models.head import examples
from fedsofim.privacy.exact import ExactNoise
from fedsofim.privacy.ledger import Budget, Ledger
from fedsofim.privacy.plan import Privacy
from fedsofim.strategies.stage import Stage
from fedsofim.transforms.stages import Covariance, Mean

N, F, K, EPSILON = 50, 40, 4, 0.5
f32 = np.float32
PERSONAL = {"lr": 1.0, "steps": 1, "tune_lr": 0.1, "tune_steps": 0}
KINDS = {
    "gradient": Gradient(),
    "tree": Tree(rounds=8),
    "steps": LocalSteps(lr=1.0, steps=1),
    "scaffold": ScaffoldSteps(lr=1.0, steps=1),
    "finetune": FineTune(**PERSONAL),
    "ditto": Ditto(lr=1.0, steps=1, own_lr=0.1, own_steps=2, pull=1.0),
    "pfedsop": PFedSOP(**PERSONAL),
    "covariance": Covariance(share=0.1, radius=3.0),
    "mean": Mean(share=0.1, radius=3.0),
}


class FloatNoise:
    """The noise that deployed clients once added: four normals from os.urandom, in float32."""

    exact = False

    def gaussian(self, total, noise_multiplier):
        count = 4 * total.value.size
        bits = np.frombuffer(os.urandom(16 * count), np.uint64) >> np.uint64(11)
        u, v = bits.astype(np.float64).reshape(2, count) * 2.0**-53
        normal = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)
        normal = (normal.reshape(4, -1).sum(axis=0) / 2).astype(total.value.dtype)
        return normal.reshape(total.value.shape) * (total.bound * noise_multiplier)


def nudged(v, steps):
    """Each float32 moved by so many units in its last place."""
    i = v.view(np.int32).astype(np.int64)
    i = np.where(i < 0, -(i & 0x7FFFFFFF), i) + steps
    return np.where(i < 0, (-i) | 0x80000000, i).astype(np.uint32).view(f32)


def reachable(y, S, std):
    """Which numbers are `fl(fl(S + fl(n std)) / N)` for some float32 n; elementwise."""
    y, S, std, size = np.ascontiguousarray(y), S.astype(f32), np.float32(std), f32(N)
    about = (y.astype(float) * N).astype(f32)
    # Where the noise is far smaller than the sum, there are too many n to try: possible.
    found = np.abs(about.astype(float) - S) < np.abs(about) / 8
    for i in range(-3, 4):
        e = nudged(about, i)
        if not (e / size == y).any():
            continue
        near = (e.astype(float) - S).astype(f32)
        for j in range(-18, 19):
            v = nudged(near, j)
            fits = (e / size == y) & (S + v == e)
            n = (v.astype(float) / std).astype(f32)
            for k in range(-2, 3):
                found |= fits & (nudged(n, k) * std == v)
    return found


@pytest.fixture
def pair():
    """Neighbours that differ in their first record: in one of them its label is wrong."""
    rng = np.random.default_rng(3)
    y = rng.integers(K, size=N)
    x = 0.1 * rng.normal(size=(N, F))
    x[np.arange(N), y] += 1
    other, label = x.copy(), y.copy()
    other[0], label[0] = 3 * x[0], (y[0] + 1) % K
    return [examples(a.astype(f32), b, K) for a, b in ((x, y), (other, label))]


def broadcast(saturated, bent):
    theta = np.zeros((K, F + 1), f32)
    if saturated:  # whoever is right has no gradient: the sum need not be known
        theta[:, :K] = 100 * np.eye(K)
    rng = np.random.default_rng(4)
    factors = {"U_G": rng.normal(size=(K, K)), "U_A": rng.normal(size=(F + 1, F + 1))}
    numbers = {name: f32(1) for name in ("lr", "rho", "sharpness")}
    sent = {"theta": theta, "c": 0 * theta, "drift": 0 * theta, **numbers}
    return sent | ({k: v.astype(f32) for k, v in factors.items()} if bent else {})


def sent(program, data, received, plan, noise):
    """What one release shows."""
    if isinstance(program, Stage):
        return release_stage(program, -1, [Client(0, data)], {}, plan, lambda *_: noise)[0]
    clients = transformed([Client(0, data)], received)
    memory = program.init(received["theta"], 1)
    released, _ = program.release(received, clients, memory, plan, lambda *_: noise)
    return released[0]


def known(program, data, received, plan):
    """The float sum of these records, and the noise on it."""
    if isinstance(program, Stage):
        z = plan.stage_multiplier(-1, program.unit_sensitivity("replace-one"))
        sums = program.summed(data, exact=False)
        stds = [np.full(S.value.shape, S.bound * z) for S in sums]
        return np.concatenate([S.value for S in sums]), np.concatenate(stds)
    (client,) = transformed([Client(0, data)], received)
    S = client.data.gradient_sum(received["theta"], plan.clip)
    return S.value, S.bound * plan.client_noise_multiplier


def right_guesses(program, pair, received, noise, count):
    """How often it is right to say: the first, if and only if all can be reached from its sum."""
    plan = Privacy(epsilon=EPSILON, delta=1e-5, clip=1.0).plan(
        releases=1,
        clients=1,
        aggregation="uniform",
        shares=(program.share,) if isinstance(program, Stage) else (),
    )
    S, std = known(program, pair[0], received, plan)
    said = []
    for data in pair:
        y = np.stack([sent(program, data, received, plan, noise) for _ in range(count)])
        said.append(reachable(y, S, std).reshape(count, -1).all(axis=1).mean())
    return (said[0] + 1 - said[1]) / 2


CASES = [
    *((name, False, False) for name in KINDS),
    *((name, True, False) for name in ("gradient", "tree", "steps")),
    *((name, False, True) for name in ("gradient", "tree", "scaffold")),
]


@pytest.mark.parametrize(("name", "saturated", "bent"), CASES)
def test_what_can_be_reached_tells_nothing(pair, name, saturated, bent):
    """Under (0.5, 1e-5)-DP nobody guesses right more often than e^0.5 / (1 + e^0.5), 62 in 100."""
    program, received, count = KINDS[name], broadcast(saturated, bent), 60
    once = right_guesses(program, pair, received, FloatNoise(), 40)
    assert once > 0.8
    now = right_guesses(program, pair, received, ExactNoise(), count)
    limit = math.exp(EPSILON) / (1 + math.exp(EPSILON))
    assert now <= limit + 4 * 0.5 / math.sqrt(2 * count)


def test_whatever_one_neighbour_can_send_the_other_can(pair):
    """A released float32 is an integer's, and every integer is noise on either sum."""
    theta, plan = (
        np.zeros((K, F + 1), f32),
        Privacy(epsilon=EPSILON, delta=1e-5, clip=1.0).plan(
            releases=1, clients=1, aggregation="uniform"
        ),
    )
    sums = [data.gradient_sum(theta, 1.0, True) for data in pair]
    std = float(sums[0].bound) * plan.noise_multiplier
    for data in pair:
        y = sent(Gradient(), data, {"theta": theta}, plan, ExactNoise()).astype(float)
        total = np.rint(y * N / sums[0].unit)
        np.testing.assert_array_equal((total * sums[0].unit / N).astype(f32), y)
        for S in sums:
            assert (np.abs(total - S.value) < 6 * std).all()


def test_an_owner_draws_this_noise_and_no_other(pair, tmp_path: Path):
    received = {"theta": np.zeros((K, F + 1), f32)}
    plan = Privacy(epsilon=EPSILON, delta=1e-5, clip=1.0).plan(
        releases=1, clients=1, aggregation="uniform"
    )
    sums = [known(Gradient(), data, received, plan) for data in pair]
    fits = []
    for i in range(20):
        place = tmp_path / str(i)
        place.mkdir()
        ledger = Ledger(place / "ledger.jsonl", Budget(epsilon=EPSILON, delta=1e-5), data=str(i))
        owner = Owner(Client(0, pair[0]), place, ledger)
        y, _ = owner.release(Terms(Gradient(), plan), received, Request("ab", 0, "job"))
        fits.append([reachable(y, S, std).all() for S, std in sums])
    assert not np.any(fits)  # no float32 noise makes these numbers, from either sum
