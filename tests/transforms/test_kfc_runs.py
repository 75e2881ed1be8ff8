"""Whole runs under a transform."""

import math

import numpy as np
import pytest

from fedsofim.clients.group import transformed
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arrays import flatten
from fedsofim.core.errors import ConfigError
from fedsofim.data.records import Dataset
from fedsofim.engines import stacked
from fedsofim.engines.local import run
from fedsofim.privacy.mechanism import SeededNoise
from fedsofim.runs.directory import RunDir
from fedsofim.runs.evaluation import measure
from fedsofim.runs.experiment import begin, prepare
from fedsofim.runs.probes import probes_for
from fedsofim.strategies import STRATEGIES
from fedsofim.strategies.rule import broadcast
from fedsofim.transforms.kfc import KFC

TAKING = [name for name in STRATEGIES if name != "ridge"]  # it sends no gradients


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Three classes in badly scaled features, with probes of the same scales."""
    rng = np.random.default_rng(0)
    scales = np.geomspace(3, 0.03, 8)
    centres = 2 * rng.standard_normal((3, 8))

    def draw(n):
        y = rng.integers(0, 3, n)
        return ((centres[y] + rng.standard_normal((n, 8))) * scales).astype(np.float32), y

    (train_x, train_y), (test_x, test_y) = draw(600), draw(300)
    probe_x = (2 * rng.standard_normal((256, 8)) * scales).astype(np.float32)
    folder = tmp_path_factory.mktemp("data")
    own = {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}
    np.savez(folder / "without.npz", **own)
    np.savez(folder / "with.npz", **own, probe_x=probe_x)
    np.savez(folder / "probes.npz", probe_x=probe_x)
    return folder


def overrides(small, *more, file="with.npz"):
    return ["dataset=npz", f"dataset.path={small / file}", "partition.clients=5", *more]


def experiment(small, *more, file="with.npz"):
    return prepare(parse(compose(overrides(small, "transform=kfc", *more, file=file))))


@pytest.mark.parametrize("strategy", TAKING)
def test_every_strategy_takes_it_and_resumes_bit_for_bit(small, strategy, tmp_path):
    few = (f"strategy={strategy}", "rounds=7", "transform.refresh_every=2", "privacy.epsilon=5")
    e = experiment(small, *few)
    whole = flatten(run(e, begin(e), lambda *_: False))
    assert all(np.isfinite(a).all() for a in whole.values() if not isinstance(a, str))
    plain = prepare(parse(compose(overrides(small, *few[:2], few[3]))))
    other = flatten(run(plain, begin(plain), lambda *_: False))
    assert any(not np.array_equal(whole[name], other[name]) for name in other)
    for stop in (2, 3):
        half = run(e, begin(e), lambda state, G, stop=stop: state.server.t == stop)
        place = RunDir.create(tmp_path / f"run{stop}", {}, {}, half)
        resumed = flatten(run(e, place.restore(begin(e)), lambda *_: False))
        for name, value in whole.items():
            np.testing.assert_array_equal(resumed[name], value)


def test_a_stack_of_runs_gives_each_runs_own_result(small):
    rates = [("strategy=fedgd", "strategy.lr=0.1"), ("strategy=sofim", "privacy.clip=2")]
    experiments = [experiment(small, *o, "rounds=12", "transform.refresh_every=5") for o in rates]
    assert len({stacked.stack_key(e.config) for e in experiments}) == 1
    together = stacked.run(experiments, lambda *_: None)
    for e, server in zip(experiments, together, strict=True):
        alone = run(e, begin(e), lambda *_: False).server
        np.testing.assert_allclose(server.theta, alone.theta, rtol=1e-3, atol=1e-4)
    plain = parse(compose(overrides(small, "rounds=12")))
    assert stacked.stack_key(plain) != stacked.stack_key(experiments[0].config)


@pytest.mark.parametrize("strategy", TAKING)
def test_each_client_alone_releases_what_all_together_do(small, strategy):
    e = experiment(small, f"strategy={strategy}", "rounds=3")
    program, server = e.config.client, begin(e).server
    received = broadcast(e.config.strategy, server)
    assert {"U_G", "U_A"} <= received.keys()

    def noise(i, draw):
        return SeededNoise(np.random.default_rng((i, draw)))

    def release(clients):
        memory = program.init(e.theta, len(clients))
        return program.release(received, transformed(clients, received), memory, e.plan, noise)[0]

    together = release(e.clients)
    for i, client in enumerate(e.clients):
        np.testing.assert_array_equal(release([client])[0], together[i])


def test_it_speeds_up_what_is_badly_conditioned(small):
    def accuracy(*more):
        e = prepare(parse(compose(overrides(small, "strategy=fedgd", "rounds=40", *more))))
        return e.test.evaluate(run(e, begin(e), lambda *_: False).server.theta)[1]

    none = ("privacy=none", "strategy.lr=0.1")
    assert accuracy(*none, "transform=kfc") < accuracy(*none) - 0.05


def test_factors_are_refreshed_when_due(small):
    def kinds(every):
        seen = []
        e = experiment(small, "rounds=6", f"transform.refresh_every={every}")

        def on_round(state, G):
            seen.append(state.server.shared.U_G.tobytes())
            return False

        first = begin(e).server.shared.U_G.tobytes()
        run(e, begin(e), on_round)
        return len({first, *seen[:-1]})

    assert [kinds(every) for every in (0, 1, 3)] == [1, 6, 2]


def test_factors_depend_on_probes_and_not_on_data(small, tmp_path):
    with np.load(small / "with.npz") as arrays:
        changed = dict(arrays)
    changed["train_x"] = changed["train_x"] * 100 + 1
    np.savez(tmp_path / "changed.npz", **changed)
    ours = begin(experiment(small)).server.shared
    theirs = begin(experiment(tmp_path, file="changed.npz")).server.shared
    np.testing.assert_array_equal(ours.U_A, theirs.U_A)
    np.testing.assert_array_equal(ours.U_G, theirs.U_G)


def test_data_without_probes_says_how_to_bring_them(small):
    with pytest.raises(ConfigError, match=r"transform\.probes=FILE\.npz"):
        experiment(small, file="without.npz")
    given_ = experiment(small, f"transform.probes={small / 'probes.npz'}", file="without.npz")
    ours, shipped = begin(given_).server.shared, begin(experiment(small)).server.shared
    np.testing.assert_array_equal(ours.U_A, shipped.U_A)
    with pytest.raises(ConfigError, match="no array probe_x"):
        experiment(small, f"transform.probes={small / 'without.npz'}")
    with pytest.raises(ConfigError, match="no such file"):
        experiment(small, "transform.probes=nowhere.npz")


def test_the_oracle_is_refused_where_privacy_is_claimed(small):
    with pytest.raises(ConfigError, match="i_know_this_is_not_private"):
        parse(compose(overrides(small, "transform=oracle")))
    with pytest.raises(ConfigError, match="i_know_this_is_not_private"):
        parse(compose(overrides(small, "transform=oracle", "privacy.noise_multiplier=3")))
    parse(compose(overrides(small, "transform=oracle", "privacy=none")))


def test_the_oracle_claims_no_privacy_even_with_noise(small):
    flag = "transform.i_know_this_is_not_private=true"
    config = parse(compose(overrides(small, "transform=oracle", flag, "rounds=2")))
    assert config.plan().noise_multiplier > 0
    assert not config.private
    assert math.isinf(config.epsilon(1))
    assert "not-private" in config.name
    e = prepare(config)
    rows = []
    run(e, begin(e), lambda state, G: rows.append(measure(e, state, G, 0.0)))
    assert [row["epsilon"] for row in rows] == [None, None]


def test_a_run_directory_says_what_was_transformed(cli, tmp_path, small):
    flag = "transform.i_know_this_is_not_private=true"
    out = cli("run", *overrides(small, "transform=oracle", flag, "rounds=2", "output.dir=o"))
    assert out.returncode == 0, out.stderr
    assert "NOT PRIVATE" in out.stdout
    assert "reads private records" in out.stdout
    summary = RunDir(tmp_path / "o").read_json("summary.json")
    assert summary["epsilon"] is None
    assert summary["delta"] is None
    assert summary["transform"] == "oracle"
    out = cli("run", *overrides(small, "transform=oracle", "rounds=2"))
    assert out.returncode == 2
    assert out.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("transform.damping=0", "transform.damping=0"),
        ("transform.floor=2", "transform.floor=2"),
        ("transform.refresh_every=-1", "transform.refresh_every=-1"),
        ("transform.count=0", "transform.count=0"),
        ("transform.alpha=-1", "transform.alpha=-1"),
        ("transform.normalise=some", "choose one of gradients, network, eigenvalues, none"),
        ("transform.name=sum", "choose one of none, kfc, oracle"),
    ],
)
def test_bad_values_are_told_in_one_line(override, told):
    with pytest.raises(ConfigError, match=told) as error:
        parse(compose(["transform=kfc", override]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "override",
    ["transform.noise=white", "transform.alpha=0.5", "transform.spectrum=power"],
)
@pytest.mark.parametrize("file", ["", "transform.probes=probes.npz"])
def test_features_refuse_noise_that_would_not_be_made(small, override, file):
    named = [file.replace("probes.npz", str(small / "probes.npz"))] if file else []
    with pytest.raises(ConfigError, match=r"transform\.probes=FILE\.npz") as error:
        experiment(small, override, *named)
    assert "\n" not in str(error.value)
    assert experiment(small, *named).probes.size == 256


@pytest.mark.parametrize(
    ("settings", "decay"),
    [({}, 1), ({"spectrum": "power"}, 0.5), ({"alpha": 3, "spectrum": "power"}, 1.5)],
)
def test_the_papers_exponent_is_that_of_the_power(settings, decay):
    assert KFC(damping=1e-3, **settings).decay == decay
    assert KFC(damping=1e-3, noise="white", **settings).decay == 0


def test_images_take_the_noise_that_is_asked_for():
    """Each asks for other probes than the default; half the power's exponent is the amplitude's."""
    shape = (3, 8, 8)
    x, y = np.zeros((4, *shape), np.float32), np.arange(4) % 2
    data, network = Dataset(x, y, x, y, 2), parse(compose(["model=cnn"])).model.network(shape, 2)

    def made(**settings):
        return probes_for(KFC(damping=1e-3, count=4, **settings), network, data, 0)

    given, power, half = made(), made(spectrum="power"), made(alpha=0.5)
    assert np.array_equal(power.x, half.x)
    assert not np.array_equal(power.x, given.x)
    assert not np.array_equal(made(noise="white").x, given.x)


def test_the_embedded_sets_bring_their_probes():
    for name in ("cifar10", "pathmnist"):
        e = prepare(parse(compose([f"dataset={name}", "transform=kfc"])))
        assert e.probes.size == 4096
        shared = begin(e).server.shared
        assert shared.U_A.shape == (65, 65)
        assert shared.U_A.dtype == np.float32
