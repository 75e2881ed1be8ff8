"""The audit passes what is honest, for every strategy, and catches what is not."""

from dataclasses import fields, replace

import numpy as np
import pytest
from float_noise import FloatNoise

from fedsofim.core.errors import ConfigError
from fedsofim.models.head import clipped_gradient_sum
from fedsofim.runs.experiment import prepare
from fedsofim.strategies import STRATEGIES
from fedsofim.studies import audit_canaries
from fedsofim.studies.audit import (
    CONFIDENCE,
    FULL,
    Size,
    audit,
    canaries,
    pair,
    reachability,
    setup_pair,
)
from fedsofim.studies.audit_pair import Stage

SMALL = Size(sums=10_000, least=200, most=500, releases=100, canaries=36)
# Few rounds, in which a pair is told apart well.
FEW = ["rounds=4"]
SENDING = [name for name in STRATEGIES if name not in ("alone", "ridge")]


@pytest.fixture(autouse=True)
def unrehearsed(monkeypatch):
    """What a config's check would find is left for the audit to find."""
    monkeypatch.setattr("fedsofim.config.checks.try_out", lambda *_: None)


def spoiled(config, **changes):
    """The config with a client that works on a plan other than the one that is claimed."""
    kind = type(config.client)

    def other(plan):
        return replace(plan, **{key: change(plan) for key, change in changes.items()})

    def release(self, received, clients, state, plan, noise):
        return kind.release(self, received, clients, state, other(plan), noise)

    faulty = type(kind.__name__, (kind,), {"release": release, "disclosure": kind.disclosure})
    values = {f.name: getattr(config.client, f.name) for f in fields(config.client)}
    return replace(config, client=faulty(**values))


def two_thirds(config):
    return spoiled(config, noise_multiplier=lambda plan: plan.noise_multiplier * 2 / 3)


def without_clipping(config):
    """The same noise, on a sum that is clipped at ten thousand times the norm."""
    return spoiled(
        config,
        clip=lambda plan: 1e4 * plan.clip,
        noise_multiplier=lambda plan: plan.noise_multiplier / 1e4,
    )


def float_noise(t):
    return lambda client, draw: FloatNoise()


def pair_of(config, size=SMALL, noise_of=None):
    stage = Stage(config, config.client, config.plan(), noise_of or config.noise)
    return pair(stage, size, CONFIDENCE)


@pytest.mark.parametrize("transform", ["none", "kfc"])
@pytest.mark.parametrize("strategy", SENDING)
def test_an_honest_client_keeps_its_claim(config_of, strategy, transform):
    found = pair_of(config_of(f"strategy={strategy}", f"transform={transform}", *FEW))
    assert found.passed
    assert 8 < found.epsilon_claimed <= 10
    assert found.epsilon_lower_bound > 2.5  # the attack is a good one
    assert found.epsilon_any <= found.epsilon_lower_bound


@pytest.mark.parametrize(
    "overrides",
    [
        ["privacy.adjacency=add-remove"],
        ["privacy.trust=aggregate", "aggregation=size", "partition.clients=3"],
        ["participation=0.5", "rounds=12"],
        ["strategy=ftrl", "client.batches=3"],
        ["strategy=fedavg", "client.steps=3"],
        ["strategy=pfedsop", "client.steps=3"],
        ["privacy.clip=0.01"],
        ["rounds=1"],
    ],
)
def test_an_honest_plan_of_any_kind_keeps_its_claim(config_of, overrides):
    found = pair_of(config_of(*FEW, *overrides))
    assert found.passed
    assert found.epsilon_lower_bound > 3


@pytest.mark.parametrize("fault", [two_thirds, without_clipping])
@pytest.mark.parametrize("strategy", [s for s in SENDING if s != "ftrl"])
def test_too_little_noise_and_no_clipping_are_caught(config_of, strategy, fault):
    found = pair_of(fault(config_of(f"strategy={strategy}", *FEW)), replace_size(2))
    assert not found.passed
    assert found.epsilon_lower_bound > found.epsilon_claimed


class Quieter:
    """Two thirds of the noise that was asked for."""

    exact = False

    def __init__(self, source):
        self.source = source

    def gaussian(self, total, noise_multiplier):
        return self.source.gaussian(total, noise_multiplier) * 2 / 3


# Most of the budget for the set-up, so that an attack on it has something to find.
LOUD = ("transform.mean_share=0.4", "privacy.epsilon=20")
SET_UPS = {
    "known": (
        *("transform=private", "transform.radius=4", "transform.nonnegative=true"),
        "transform.covariance_share=0.45",
    ),
    "unknown": (
        "transform=private",
        "transform.norms_share=0.15",
        "transform.covariance_share=0.2",
    ),
    "ridge": ("strategy=ridge", "transform.norms_share=0.2"),
}
STAGES = [("known", t) for t in (-2, -1)]
STAGES += [(name, t) for name in ("unknown", "ridge") for t in (-4, -3, -2, -1)]


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("name", "t"), [*STAGES, *((name, None) for name in SET_UPS)])
def test_a_stage_keeps_its_claim_and_too_little_noise_is_caught(
    config_of, small, name, t, adjacency
):
    """Each by itself, and all of a set-up together."""
    config = config_of(*small, *SET_UPS[name], *LOUD, f"privacy.adjacency={adjacency}")
    numbers = range(-len(config.stages), 0) if t is None else [t]
    size = SMALL._replace(sums=20_000 * len(numbers))

    def found(noise_of):
        stage = Stage(config, config.client, config.plan(), noise_of)
        return setup_pair(stage, size, numbers, CONFIDENCE)

    honest = found(config.noise)
    assert honest.passed
    assert honest.epsilon_lower_bound > 0.4 * honest.epsilon_claimed
    assert not found(lambda t: lambda *key: Quieter(config.noise(t)(*key))).passed


def test_a_tree_without_clipping_is_caught(config_of):
    assert not pair_of(without_clipping(config_of("strategy=ftrl", *FEW))).passed


def replace_size(times):
    return SMALL._replace(sums=times * SMALL.sums, most=times * SMALL.most)


@pytest.mark.parametrize("strategy", ["fedgd", "fedavg", "scaffold", "ftrl"])
def test_reused_noise_is_caught(config_of, strategy):
    config = config_of(f"strategy={strategy}", *FEW)
    first = config.noise(0)
    assert not pair_of(config, noise_of=lambda t: first).passed


@pytest.mark.parametrize("transform", ["none", "kfc"])
@pytest.mark.parametrize("strategy", SENDING)
def test_float_noise_is_caught_number_by_number(config_of, strategy, transform):
    config = config_of(f"strategy={strategy}", f"transform={transform}", "privacy.epsilon=1")
    stage = Stage(config, config.client, config.plan(), float_noise)
    found = reachability(stage, SMALL, CONFIDENCE)
    assert not found.passed
    assert found.epsilon_any > found.epsilon_claimed


class GridNoise:
    """Whole numbers on a fine grid; a sum on the same grid stays on it."""

    def __init__(self, rng, std, grid):
        self.rng, self.std, self.grid = rng, std, grid

    def standard_normal(self, size, dtype):
        whole = np.rint(self.rng.standard_normal(size) * self.std / self.grid)
        return (whole * self.grid / self.std).astype(np.float64)


def test_grid_noise_passes_number_by_number(config_of, monkeypatch, rng):
    """A mechanism on a grid: the sum is rounded to it, the noise is whole, one division follows."""
    config, grid = config_of("strategy=fedgd"), 2.0**-10
    plan = config.plan()
    source = GridNoise(rng, plan.noise_std, grid)
    kind = type(config.client)

    def release(self, received, clients, state, plan, noise):
        S = [clipped_gradient_sum(received["theta"], D, plan.clip) for _, D in clients]
        whole = np.rint(np.array(S, np.float64) / grid) * grid
        noisy = whole + source.standard_normal(whole.shape, np.float64) * plan.noise_std
        return (noisy / clients[0].data.size).astype(np.float32), state

    program = type("OnGrid", (kind,), {"release": release, "disclosure": kind.disclosure})()
    found = reachability(Stage(config, program, plan, float_noise), SMALL, CONFIDENCE)
    assert found.passed


def test_the_error_is_shared_by_the_tests(config_of, small):
    found = audit(config_of(*small, "strategy=fedfc"), size=SMALL)
    assert [f.test for f in found.findings] == ["pair", "pair, second moment", "canaries"]
    for finding in found.findings:
        assert finding.confidence == pytest.approx(1 - 0.05 / 3)
    assert found.passed
    assert found.row()["epsilon_lower_bound"] == max(f.epsilon_lower_bound for f in found.findings)
    assert "--device" in found.skipped["reachability"]


@pytest.mark.parametrize(("noise", "hidden"), [(None, True), (float_noise, False)])
def test_a_device_is_audited_with_its_own_noise(config_of, small, noise, hidden):
    """Exact noise passes all tests; floats in its place are found."""
    size = SMALL._replace(sums=8 * 800, least=50, releases=400)
    found = audit(config_of(*small), size=size, device=True, noise_of=noise)
    verdicts = {f.test: f.passed for f in found.findings}
    assert verdicts == {"pair": True, "reachability": hidden}
    assert found.passed == hidden


def test_a_head_in_one_shot_is_audited_by_what_it_releases_before_the_first_round(config_of):
    found = audit(config_of("strategy=ridge", "privacy.epsilon=10"), size=SMALL)
    names = ["pair, mean", "pair, class moments", "pair, set-up"]
    assert [f.test for f in found.findings] == names
    assert found.passed
    whole = found.findings[-1]
    assert whole.epsilon_claimed == pytest.approx(10, rel=1e-6)
    assert whole.epsilon_lower_bound > 4
    assert "nothing is sent in rounds" in found.skipped["canaries"]


def test_a_device_s_set_up_is_audited_too(config_of, small):
    size = SMALL._replace(sums=16 * 800, least=50, releases=400)
    found = audit(config_of(*small, "strategy=ridge"), size=size, device=True)
    assert found.passed
    assert "pair, norms" in {f.test for f in found.findings}


def test_what_claims_nothing_is_not_audited(config_of, small):
    with pytest.raises(ConfigError, match="promises nothing"):
        audit(config_of("privacy=none"))
    with pytest.raises(ConfigError, match="trust=server"):
        audit(config_of("privacy.trust=aggregate", "aggregation=size"), device=True)
    nothing = audit(config_of(*small, "strategy=alone", "privacy.epsilon=1"))
    assert nothing.passed
    assert nothing.row()["epsilon_lower_bound"] == 0


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["strategy=scaffold", "client.steps=2"],
        ["strategy=pfedsop"],
        ["privacy.adjacency=add-remove"],
        ["privacy.trust=aggregate", "aggregation=size"],
    ],
)
def test_canaries_show_less_than_is_claimed_but_something(config_of, npz, overrides):
    setting = ["dataset=npz", f"dataset.path={npz}", "partition.clients=2", "rounds=6"]
    found = canaries(prepare(config_of(*setting, *overrides)), SMALL, CONFIDENCE)
    assert found.passed
    assert found.epsilon_claimed == pytest.approx(10)


def test_canaries_refute_a_claim_without_noise_behind_it(config_of, npz):
    setting = ["dataset=npz", f"dataset.path={npz}", "partition.clients=6", "privacy.epsilon=1"]
    setting += ["settings=published"]
    config = config_of(*setting, "privacy.clip=1")
    honest = canaries(prepare(config), SMALL, CONFIDENCE)
    bare = spoiled(config, noise_multiplier=lambda plan: plan.noise_multiplier / 30)
    found = canaries(prepare(bare), SMALL, CONFIDENCE)
    assert honest.passed
    assert honest.epsilon_lower_bound < 1 < found.epsilon_lower_bound
    assert not found.passed


def test_a_canary_run_differs_from_the_run_by_its_canaries_alone(config_of, small, monkeypatch):
    experiment = prepare(config_of(*small))
    planted = []
    monkeypatch.setattr(audit_canaries.local, "run", lambda e, s, o: planted.append(e))
    adversary = audit_canaries.canary_run(experiment, 12)
    (audited,) = planted
    for (_, before), (i, after) in zip(experiment.clients, audited.clients, strict=True):
        places = adversary.places[i]
        assert after.size == before.size
        changed = np.flatnonzero((after.x != before.x).any(axis=0))
        np.testing.assert_array_equal(changed, places.slots)
        heads = after.x[:, places.slots[places.heads]]
        np.testing.assert_array_equal(heads, places.canaries.x[:, places.heads])
    assert len(adversary.heads) == 12
    assert audited.plan == experiment.plan


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["none", "kfc"])
@pytest.mark.parametrize("strategy", SENDING)
def test_every_strategy_at_full_size(config_of, strategy, transform):
    config = config_of(f"strategy={strategy}", f"transform={transform}")
    found = audit(config)
    assert found.passed
    assert found.row()["epsilon_lower_bound"] > 3


@pytest.mark.slow
@pytest.mark.parametrize("fault", [two_thirds, without_clipping])
@pytest.mark.parametrize("strategy", SENDING)
def test_every_fault_at_full_size(config_of, strategy, fault):
    assert not pair_of(fault(config_of(f"strategy={strategy}")), FULL).passed
