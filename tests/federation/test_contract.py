"""Every method gives the same run on every engine. A method joins by being in the registry."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from inprocess import InProcessGrid
from smalldata import CLIENTS

from fedsofim import federation
from fedsofim.config.parts import section
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines.flower import flower_engine
from fedsofim.federation import deployed, methods, server_app
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir
from fedsofim.runs.experiment import prepare
from fedsofim.strategies import STRATEGIES

Values = Callable[..., dict[str, Any]]


def rows_of(place: RunDir) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in place.metrics()]


def same(a: RunDir, b: RunDir) -> None:
    """Both runs wrote the same parameters, bit for bit, and the same rows."""
    first, second = (np.load(place.path / "checkpoint.npz") for place in (a, b))
    assert first.files == second.files
    for name in first.files:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    np.testing.assert_array_equal(
        np.load(a.path / "model.npz")["theta"], np.load(b.path / "model.npz")["theta"]
    )
    assert rows_of(a) == rows_of(b)
    assert {f.name for f in a.path.iterdir()} == {f.name for f in b.path.iterdir()}


@pytest.mark.parametrize(("name", "nodes"), [*((name, 2) for name in STRATEGIES), ("sofim", 5)])
def test_flower_gives_the_local_run(name: str, nodes: int, values: Values) -> None:
    chosen = [f"strategy={name}", "aggregation=size", "seed=3"]
    chosen += ["transform.radius=4"] if name == "ridge" else []
    local = session.run(values(*chosen))
    grid = InProcessGrid.simulated(nodes)
    flower = session.run(values(*chosen, "engine=flower"), engine=flower_engine(grid))
    same(local, flower)
    assert len(grid.asked) >= nodes * 5  # a greeting and four rounds each


@pytest.mark.parametrize("name", ["pfedsop", "fedavg_finetune", "alone", "ditto"])
def test_flower_gives_the_local_run_of_personal_networks(name: str, values: Values) -> None:
    pytest.importorskip("torch")
    chosen = [f"strategy={name}", "model=mlp", "model.width=4", "participation=0.5"]
    grid = InProcessGrid.simulated(2)
    local = session.run(values(*chosen))
    same(local, session.run(values(*chosen, "engine=flower"), engine=flower_engine(grid)))


@pytest.mark.parametrize("name", ["sofim", "fedfc", "ftrl", "scaffold", "pfedsop"])
def test_flower_gives_the_local_run_on_mapped_records(name: str, values: Values) -> None:
    chosen = [f"strategy={name}", "aggregation=size", "transform=private", "transform.radius=4"]
    grid = InProcessGrid.simulated(2)
    local = session.run(values(*chosen))
    same(local, session.run(values(*chosen, "engine=flower"), engine=flower_engine(grid)))


@pytest.mark.parametrize("how", ["tail", "ema"])
def test_flower_gives_the_local_average(how: str, values: Values) -> None:
    chosen = ["strategy=fedgd", f"average={how}"]
    grid = InProcessGrid.simulated(2)
    local = session.run(values(*chosen))
    same(local, session.run(values(*chosen, "engine=flower"), engine=flower_engine(grid)))


def test_exact_noise_is_remembered_in_integers(values: Values) -> None:
    chosen = ["strategy=ftrl", "privacy.noise=exact"]
    runs = [
        session.run(values(*chosen)),
        session.run(
            values(*chosen, "engine=flower"), engine=flower_engine(InProcessGrid.simulated(2))
        ),
    ]
    for place in runs:
        saved = np.load(place.path / "checkpoint.npz")
        (nodes,) = (saved[name] for name in saved.files if name.endswith("nodes"))
        assert nodes.dtype == np.int64
        assert (nodes % 1024).any()  # no float32 was in between


@pytest.mark.parametrize("name", ["sofim", "fedavg", "pfedsop"])
def test_a_part_of_the_clients_in_each_round(name: str, values: Values) -> None:
    chosen = [f"strategy={name}", "participation=0.5"]
    grid = InProcessGrid.simulated(2)
    same(
        session.run(values(*chosen)),
        session.run(values(*chosen, "engine=flower"), engine=flower_engine(grid)),
    )


@pytest.mark.parametrize("name", ["sofim", "scaffold", "ftrl", "fedfc"])
def test_an_interrupted_flower_run_continues_to_the_same_result(name: str, values: Values) -> None:
    chosen = [f"strategy={name}", "output.checkpoint_every=1", "engine=flower"]
    whole = session.run(values(*chosen), engine=flower_engine(InProcessGrid.simulated(3)))

    class CutError(Exception):
        pass

    grid = InProcessGrid.simulated(2)

    def failing(experiment: Any, state: Any, on_round: Any) -> Any:
        def until_two(now: Any, G: Any, **notes: Any) -> bool:
            if now.server.t == 3:
                raise CutError
            return bool(on_round(now, G, **notes))

        return flower_engine(grid)(experiment, state, until_two)

    half = values(*chosen)
    with pytest.raises(CutError):
        session.run(half, engine=failing)
    path = Path(half["output"]["dir"])
    assert len(RunDir.open(path).metrics()) == 2
    same(whole, session.resume(path, engine=flower_engine(InProcessGrid.simulated(5))))


@pytest.mark.parametrize("option", ["engine.min_clients=4", "engine.on_missing=skip"])
def test_clients_of_every_round_are_not_done_without(option: str, values: Values) -> None:
    for name in ("scaffold", "ftrl"):
        with pytest.raises(ConfigError, match="must take part in every round"):
            parse(values("engine=flower", f"strategy={name}", option))


def test_every_method_has_a_name_on_flower() -> None:
    known = {m.rule for m in vars(methods).values() if isinstance(m, methods.Method)}
    assert known == set(STRATEGIES.values())


def test_a_method_is_a_flower_strategy_of_its_own(values: Values) -> None:
    """Without our engine: `DPFedSOFIM(...)` and Flower's own `start`."""
    given = values("strategy=sofim")
    experiment = prepare(parse(given))
    quorum = federation.Quorum(job=experiment.config.text, clients=CLIENTS, rounds=4)
    rule = experiment.config.strategy
    settings = {k: v for k, v in section("strategy", rule).items() if k != "name"}
    strategy = federation.DPFedSOFIM(quorum, **settings)
    result = strategy.start(InProcessGrid.simulated(2), ArrayRecord([experiment.theta]))
    local = session.run(given).path / "model.npz"
    np.testing.assert_array_equal(result.arrays["theta"].numpy(), np.load(local)["theta"])


@pytest.mark.parametrize("name", ["sofim", "fedavg", "scaffold", "ftrl"])
def test_a_transform_reaches_clients_over_flower(name: str, values: Values, tmp_path: Path) -> None:
    file = tmp_path / "probes.npz"
    features = parse(values()).dataset.file
    shape = np.load(features)["train_x"].shape[1]
    np.savez(file, probe_x=np.random.default_rng(0).gamma(1.0, size=(64, shape)))
    chosen = [f"strategy={name}", "transform=kfc", f"transform.probes={file}"]
    chosen += ["transform.refresh_every=2"]
    grid = InProcessGrid.simulated(2)
    local = session.run(values(*chosen))
    same(local, session.run(values(*chosen, "engine=flower"), engine=flower_engine(grid)))
    plain = session.run(values(chosen[0]))
    assert not np.array_equal(*(np.load(r.path / "model.npz")["theta"] for r in (local, plain)))


def test_flwr_run_reads_a_simulations_data_once(
    values: Values, data_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a deployment has a test set of the server's own, apart from everyone's records."""

    def fail(config: Any) -> None:
        raise AssertionError("a simulation has no use for it")

    monkeypatch.setattr(deployed, "load_test_set", fail)
    settings = [
        "strategy=fedgd",
        "dataset=npz",
        "settings=published",
        f"dataset.path={data_file}",
        "rounds=4",
    ]
    parts = [f"partition.clients={CLIENTS}", "partition.min_size=20"]
    overrides = " ".join([*settings, *parts, f"output.dir={tmp_path / 'flwr'}"])
    place = server_app.serve(InProcessGrid.simulated(2), overrides=overrides)
    local = session.run(values("strategy=fedgd"))
    np.testing.assert_array_equal(
        *(np.load(run.path / "model.npz")["theta"] for run in (place, local))
    )


@pytest.mark.parametrize("how", ["median", "trimmed", "krum"])
def test_robust_aggregation_is_the_same_on_flower(how: str, values: Values) -> None:
    chosen = ["strategy=sofim", f"aggregation={how}"]
    grid = InProcessGrid.simulated(2)
    same(
        session.run(values(*chosen)),
        session.run(values(*chosen, "engine=flower"), engine=flower_engine(grid)),
    )
