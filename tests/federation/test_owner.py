"""Owners of data: charges before releases, refusals, replays, and a budget of their own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from inprocess import InProcessGrid
from smalldata import CLASSES, FEATURES, write_records

from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.federation import server_app
from fedsofim.federation.messages import HELLO, RELEASE, pack, unpack
from fedsofim.federation.owner import NO_REASON
from fedsofim.privacy.accounting import compose as compose_events
from fedsofim.privacy.accounting import epsilon_of
from fedsofim.privacy.ledger import NAME, Budget, Ledger, opened
from fedsofim.privacy.refusals import Refusal
from fedsofim.runs.directory import RunDir

Values = Callable[..., dict[str, Any]]


@pytest.fixture
def owners(tmp_path: Path) -> list[dict[str, Any]]:
    """Three owners with files of their own."""
    configs = []
    for i in range(3):
        place = tmp_path / f"owner{i}"
        place.mkdir()
        write_records(place / "records.npz", 60 + 10 * i, seed=i)
        configs.append(
            {
                "partition-id": i,
                "data": str(place / "records.npz"),
                "classes": CLASSES,
                "state": str(place),
                "epsilon": 10.0,
                "delta": 1e-5,
            }
        )
    return configs


def serve(grid: InProcessGrid, tmp_path: Path, data_file: Path, *overrides: str) -> RunDir:
    given = [
        *("dataset=npz", "settings=published"),
        f"dataset.path={data_file}",
        "partition.clients=3",
        "rounds=4",
        "engine.wait=0.2",
        "engine.timeout=0.2",
        f"output.dir={tmp_path / 'run'}",
        *overrides,
    ]
    return server_app.serve(grid, overrides=" ".join(given))


def ledger_of(config: dict[str, Any]) -> Ledger:
    place = Path(config["state"])
    budget = Budget(epsilon=10, delta=1e-5)
    return opened(place) if (place / NAME).exists() else Ledger(place / NAME, budget, data="none")


@pytest.mark.parametrize("name", ["sofim", "scaffold", "ftrl", "fedfc", "fedavg"])
def test_owners_train_and_charge_what_the_plan_says(
    name: str, owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    place = serve(InProcessGrid(owners), tmp_path, data_file, f"strategy={name}")
    rows = place.metrics()
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    for owner in owners:
        assert ledger_of(owner).epsilon() == pytest.approx(rows[-1]["epsilon"], rel=1e-9)
        assert ledger_of(owner).epsilon() <= 10
    recorded = json.loads((place.path / "partition.json").read_text())
    assert recorded["sizes"] == [60, 70, 80]
    assert "counts" not in recorded
    assert not (place.path / "partition.svg").exists()


def test_owners_of_a_one_shot_run_charge_its_stages_alone(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    given = ["strategy=ridge", "transform.radius=4", "rounds=1"]
    place = serve(InProcessGrid(owners), tmp_path, data_file, *given)
    (row,) = place.metrics()
    assert np.isfinite(np.load(place.path / "model.npz")["theta"]).all()
    for owner in owners:
        charges = ledger_of(owner).charges()
        assert [charge.round for charge in charges if charge.count] == [-2, -1]
        assert ledger_of(owner).epsilon() == pytest.approx(row["epsilon"], rel=1e-9)


def test_the_noise_is_not_the_seeds(
    owners: list[dict[str, Any]],
    tmp_path: Path,
    data_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = []
    for name in ("a", "b"):  # as on two machines
        monkeypatch.setenv("FEDSOFIM_STATE", str(tmp_path / name / "state"))
        for owner in owners:
            owner["state"] = str(tmp_path / name / str(owner["partition-id"]))
        path = f"output.dir={tmp_path / name / 'run'}"
        runs.append(serve(InProcessGrid(owners), tmp_path, data_file, path))
    a, b = (np.load(run.path / "model.npz")["theta"] for run in runs)
    assert not np.any(a == b)


def test_a_budget_that_does_not_cover_the_run_is_refused_at_the_door(
    owners: list[dict[str, Any]],
    tmp_path: Path,
    data_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server hears that it is refused, the owner by how much."""
    owners[1]["epsilon"] = 3.0
    with pytest.raises(ConfigError, match=rf"client 1: {Refusal.BUDGET}\)?$"):
        serve(InProcessGrid(owners), tmp_path, data_file)
    assert "the owner's budget is epsilon 3 at delta 1e-05" in caplog.text
    assert not any(ledger_of(owner).charges() for owner in owners)


def test_other_neighbours_than_the_owners_are_not_believed(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    """A run that counts one record more or less spends twice as much when one is replaced."""
    with pytest.raises(ConfigError, match="the owner's budget"):
        serve(InProcessGrid(owners), tmp_path, data_file, "privacy.adjacency=add-remove")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("privacy=none", "the owner's budget"),
        ("privacy.noise_multiplier=0.1", "the owner's budget"),
        ("privacy.clip=100 privacy.noise_multiplier=0.01", "the owner's budget"),
        ("privacy.clip=1e6 privacy.noise_multiplier=0.01", r"the owner's policy .* \(clip\)"),
        ("privacy.trust=aggregate aggregation=size", Refusal.UNPROTECTED),
    ],
)
def test_no_plan_talks_an_owner_into_more(
    override: str,
    message: str,
    owners: list[dict[str, Any]],
    tmp_path: Path,
    data_file: Path,
) -> None:
    with pytest.raises(ConfigError, match=message):
        serve(InProcessGrid(owners), tmp_path, data_file, *override.split())
    assert not any(ledger_of(owner).charges() for owner in owners)


def question(job: str, t: int, theta: Any, client: int = 0, run: str = "ab") -> Message:
    said = {"job": job, "run": run, "round": t, "clients": [client]}
    return Message(pack({"theta": theta}, said), 1000, RELEASE)


def ask(grid: InProcessGrid, message: Message) -> tuple[dict[str, Any], dict[str, Any]]:
    grid.push_messages([message])
    (reply,) = grid.pull_messages([])
    return unpack(reply.content)


@pytest.fixture
def alone(owners: list[dict[str, Any]], values: Values) -> tuple[InProcessGrid, str, Any]:
    grid = InProcessGrid(owners[:1])
    job = parse(values("partition.clients=1", "strategy=fedgd")).text
    return grid, job, np.zeros((CLASSES, FEATURES + 1), np.float32)


def test_the_same_question_gets_the_same_release_for_free(
    alone: tuple[InProcessGrid, str, Any], owners: list[dict[str, Any]]
) -> None:
    grid, job, theta = alone
    first, said = ask(grid, question(job, 0, theta))
    again, said_again = ask(grid, question(job, 0, theta))
    np.testing.assert_array_equal(first["release"], again["release"])
    assert said["charged"] == said_again["charged"] == 1
    other, said = ask(grid, question(job, 0, theta + 1))
    assert said["charged"] == 2
    assert np.abs(other["release"] - first["release"]).max() > 0
    assert len(ledger_of(owners[0]).charges()) == 2


def test_rounds_are_counted_by_the_owner_not_by_the_server(
    owners: list[dict[str, Any]], values: Values
) -> None:
    """In the middle of an epoch DP-FTRL charges nothing; a server can't stay there for ever."""
    job = parse(values("partition.clients=1", "strategy=ftrl", "client.batches=2")).text
    grid = InProcessGrid(owners[:1])
    theta = np.zeros((CLASSES, FEATURES + 1), np.float32)
    said = [ask(grid, question(job, 1, theta + k))[1] for k in range(5)]
    assert [s.get("charged") for s in said[:4]] == [2, 2, 4, 4]
    assert "too small" in said[4]["error"]


def test_a_server_cannot_take_the_noise_away_in_the_middle_of_an_epoch(
    owners: list[dict[str, Any]], values: Values
) -> None:
    """What costs nothing there does so because the epoch was paid for, with its noise."""
    terms = ["partition.clients=1", "strategy=ftrl", "client.batches=4", "client.rounds=4"]
    job, longer, bare = (
        parse(values(*terms, *more)).text
        for more in ([], ["output.checkpoint_every=9"], ["privacy=none", "privacy.clip=1000"])
    )
    grid, theta = InProcessGrid(owners[:1]), np.zeros((CLASSES, FEATURES + 1), np.float32)
    assert "release" in ask(grid, question(job, 0, theta))[0]
    assert "release" in ask(grid, question(longer, 1, theta))[0]
    arrays, said = ask(grid, question(bare, 2, theta))
    assert not arrays
    assert said["refused"]
    assert "began on other terms" in said["error"]
    assert len(ledger_of(owners[0]).charges()) == 2


def test_a_spent_budget_ends_in_refusal(
    alone: tuple[InProcessGrid, str, Any],
    owners: list[dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid, job, theta = alone
    for k in range(4):
        assert "release" in ask(grid, question(job, k, theta + k))[0]
    arrays, said = ask(grid, question(job, 3, theta + 9))
    assert not arrays
    assert said["refused"]
    assert said["error"] == Refusal.BUDGET
    assert "10 is spent" in caplog.text
    assert ledger_of(owners[0]).epsilon() <= 10


def test_nothing_is_charged_that_could_not_be_kept(
    owners: list[dict[str, Any]],
    tmp_path: Path,
    data_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    usage, full = shutil.disk_usage, Path(owners[1]["state"])

    def disk_usage(path: Path) -> Any:
        return usage(path)._replace(free=0) if Path(path) == full else usage(path)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    place = serve(InProcessGrid(owners), tmp_path, data_file, "engine.min_clients=2")
    assert all(row["dropped"] == [f"client 1: {NO_REASON}"] for row in place.metrics())
    assert len(ledger_of(owners[0]).charges()) == 4
    assert not (full / NAME).exists()
    assert f"less than 8 MB are left: '{full}'" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_lost_ledger_entry_is_not_forgiven(
    alone: tuple[InProcessGrid, str, Any],
    owners: list[dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid, job, theta = alone
    ask(grid, question(job, 0, theta))
    ledger = ledger_of(owners[0]).path
    ledger.write_text("nonsense\n" + ledger.read_text())
    _, said = ask(grid, question(job, 1, theta))
    assert said["refused"]
    assert said["error"] == Refusal.ACCOUNT  # and not where it is
    assert f"{ledger}: line 1 is damaged" in caplog.text


def test_a_run_name_is_no_path(alone: tuple[InProcessGrid, str, Any]) -> None:
    grid, job, theta = alone
    assert "not a name" in ask(grid, question(job, 0, theta, run="../../x"))[1]["error"]


def test_memory_survives_the_process(owners: list[dict[str, Any]], values: Values) -> None:
    """SCAFFOLD's c_i is on disk: a round after the first differs from one that starts anew."""
    job = parse(values("partition.clients=1", "strategy=scaffold", "privacy=none")).text
    theta = np.zeros((CLASSES, FEATURES + 1), np.float32)
    c = np.ones_like(theta)
    owners[0]["epsilon"] = float("inf")

    def asked(t: int) -> Any:
        said = {"job": job, "run": "ab", "round": t, "clients": [0]}
        message = Message(pack({"theta": theta, "c": c}, said), 1000, RELEASE)
        return ask(InProcessGrid(owners[:1]), message)[0]["release"]

    first, second = asked(0), asked(1)
    assert np.abs(first - second).max() > 1e-3
    for file in Path(owners[0]["state"]).glob("run-*.npz"):
        file.unlink()
    said = {"job": job, "run": "ab", "round": 2, "clients": [0]}
    message = Message(pack({"theta": theta, "c": c}, said), 1000, RELEASE)
    assert "is lost" in ask(InProcessGrid(owners[:1]), message)[1]["error"]


def test_faults_of_nodes_are_told_where_people_look(
    owners: list[dict[str, Any]],
    tmp_path: Path,
    data_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    owners[1]["classes"] = 9
    np.savez(owners[2]["data"], x=np.zeros((9, 4), np.float32), y=np.zeros(9, int))
    with pytest.raises(ConfigError, match=r"in vain for client 1, 2 of 3"):
        serve(InProcessGrid(owners), tmp_path, data_file)
    told = caplog.text
    assert "client 1: its records have 9 classes, not 3" in told
    assert "client 2: its records have 4 features, not 6" in told


def greet(grid: InProcessGrid, job: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return ask(grid, Message(pack({}, {"job": job, "run": "ab", "population": 1}), 1000, HELLO))


def damage(file: str, kind: str) -> None:
    with np.load(file) as arrays:
        x, y = arrays["train_x"], arrays["train_y"]
    if kind == "a NaN":
        x[5, 1] = np.nan
    y[7] = {"a negative label": -1, "a large label": 7}.get(kind, y[7])
    np.savez(file, x=x, y=y)
    if kind == "no file":
        Path(file).unlink()


@pytest.mark.parametrize("kind", ["a NaN", "a negative label", "a large label", "no file"])
def test_faults_of_records_are_told_to_their_owner_alone(
    kind: str,
    alone: tuple[InProcessGrid, str, Any],
    owners: list[dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid, job, theta = alone
    damage(owners[0]["data"], kind)
    for answer in (greet(grid, job), ask(grid, question(job, 0, theta))):
        assert answer == ({}, {"error": NO_REASON, "refused": False, "client": 0})
    assert owners[0]["data"] in caplog.text


@pytest.mark.parametrize("label", [2, 7])
def test_a_model_is_compared_with_the_classes_that_the_owner_names(
    label: int, alone: tuple[InProcessGrid, str, Any], owners: list[dict[str, Any]]
) -> None:
    """Else a server could look for the largest label, for free."""
    grid, job, _ = alone
    owners[0]["classes"] = 8
    with np.load(owners[0]["data"]) as arrays:
        x, y = arrays["train_x"], arrays["train_y"] % 2
    np.savez(owners[0]["data"], x=x, y=np.append(y[1:], label))
    _, said = ask(grid, question(job, 0, np.zeros((5, FEATURES + 1), np.float32)))
    assert "of shape (8, 7), for 8 classes and 6 features" in said["error"]


def test_what_nobody_foresaw_is_not_told(
    alone: tuple[InProcessGrid, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("the label of record 7")

    grid, job, theta = alone
    monkeypatch.setattr("fedsofim.federation.owner.Owner.release", fail)
    assert ask(grid, question(job, 0, theta))[1]["error"] == NO_REASON


def test_a_server_counts_nothing_in_a_file_of_the_owners(
    alone: tuple[InProcessGrid, str, Any], owners: list[dict[str, Any]]
) -> None:
    grid, job, theta = alone
    values = json.loads(job)
    values["partition"] |= {"kind": "natural", "clients": None}
    values["dataset"]["path"] = owners[0]["data"]
    for answer in (
        greet(grid, json.dumps(values)),
        ask(grid, question(json.dumps(values), 0, theta)),
    ):
        assert answer[1]["error"] == "partition.clients: say how many"


def test_wrong_numbers_of_clients_are_told(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owners[1]["partition-id"] = 0
    owners[2]["partition-id"] = 7
    with pytest.raises(ConfigError, match="in vain for client 1, 2 of 3"):
        serve(InProcessGrid(owners), tmp_path, data_file)
    told = caplog.text
    assert "client 0: another node speaks for it already" in told
    assert "client 7: there are 3 clients, numbered from 0" in told


def test_a_wrong_node_config_is_told_to_its_owner(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owners[0]["epsillon"] = owners[0].pop("epsilon")
    with pytest.raises(ConfigError, match=f"client 0: {NO_REASON}"):
        serve(InProcessGrid(owners), tmp_path, data_file)
    assert "did you mean epsilon" in caplog.text


def test_an_owner_may_be_away_and_come_back(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    grid = InProcessGrid(owners)
    away = next(n for n, config in grid.nodes.items() if config["partition-id"] == 2)
    config = grid.nodes[away]

    def leave(message: Message, reply: Message) -> list[Message]:
        t = unpack(message.content)[1].get("round")
        if t == 1 and message.metadata.dst_node_id == away:
            del grid.nodes[away]  # when it has answered
        if t == 2 and 5 not in grid.nodes:
            grid.nodes[5] = config  # it comes back, as another node
        return [reply]

    grid.tamper = leave
    rows = serve(grid, tmp_path, data_file, "engine.min_clients=2").metrics()
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert rows[2]["dropped"] == ["client 2: not connected"]
    assert [rows[k].get("dropped") for k in (0, 3)] == [None, None]
    assert len(ledger_of(config).charges()) == 3
    assert len(ledger_of(owners[0]).charges()) == 4


def test_a_deployment_continues_from_its_checkpoint_for_free(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    """The round that was under way when the server died is asked again, and costs nothing."""

    class DeadError(Exception):
        pass

    def die(message: Message, reply: Message) -> list[Message]:
        if unpack(message.content)[1].get("round") == 2:
            raise DeadError
        return [reply]

    with pytest.raises(DeadError):
        serve(InProcessGrid(owners, die), tmp_path, data_file)
    place = server_app.serve(InProcessGrid(owners), resume=str(tmp_path / "run"))
    assert [row["round"] for row in place.metrics()] == [1, 2, 3, 4]
    for owner in owners:
        events = [charge.event("replace-one") for charge in ledger_of(owner).charges()]
        assert len(events) == 4
        assert epsilon_of(compose_events(events), 1e-5) == pytest.approx(10, rel=1e-6)


def test_a_client_that_lost_its_last_release_ends_the_run_within_the_budget(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    """It charges twice for a round, so the last round is not affordable, and is not held."""
    owners[0]["epsilon"] = 20.0
    lost = []

    def lose(message: Message, reply: Message) -> list[Message]:
        said = unpack(message.content)[1]
        if said.get("round") == 1 and message.metadata.dst_node_id == 1000 and not lost:
            lost.append(True)
            for file in Path(owners[0]["state"]).glob("run-*.npz"):
                file.unlink()
            return []
        return [reply]

    place = serve(InProcessGrid(owners, lose), tmp_path, data_file, "strategy=fedgd")
    rows = place.metrics()
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[1]["epsilon"] > 0
    assert rows[-1]["epsilon"] == pytest.approx(10, rel=1e-6)
    assert len(ledger_of(owners[0]).charges()) == 4
    assert json.loads((place.path / "summary.json").read_text())["rounds"] == 3


def test_a_server_without_data_trains_unscored(
    owners: list[dict[str, Any]], tmp_path: Path, data_file: Path
) -> None:
    given = ["dataset=owners", f"dataset.classes={CLASSES}"]
    grid = InProcessGrid(owners)
    overrides = [*given, "partition.clients=3", "rounds=2", f"output.dir={tmp_path / 'run'}"]
    place = server_app.serve(grid, overrides=" ".join(overrides))
    assert [row["accuracy"] for row in place.metrics()] == [None, None]
    assert np.load(place.path / "model.npz")["theta"].shape == (CLASSES, FEATURES + 1)
    assert (place.path / "report.html").exists()
    asked = [message for message in grid.asked if message.metadata.message_type == RELEASE]
    contents = {message.content.object_id for message in asked}
    assert len(asked) == 3 * len(contents) >= 6  # one content is stored once for all owners


@pytest.mark.parametrize(
    ("U_G", "U_A", "told"),
    [
        (np.eye(CLASSES), None, "U_A: should be finite"),
        (np.eye(CLASSES + 1), np.eye(FEATURES + 1), "U_G: should be finite"),
        (np.eye(CLASSES) * np.nan, np.eye(FEATURES + 1), "U_G: should be finite"),
    ],
)
def test_a_transform_that_is_none_is_refused(
    alone: tuple[InProcessGrid, str, Any], U_G: Any, U_A: Any, told: str
) -> None:
    grid, job, theta = alone
    good = question(job, 0, theta)
    _, said = unpack(good.content)
    factors = {"U_G": U_G, "U_A": U_A}
    sent = {k: v.astype(np.float32) for k, v in factors.items() if v is not None}
    arrays, said = ask(grid, Message(pack({"theta": theta, **sent}, said), 1000, RELEASE))
    assert "release" not in arrays
    assert told in said["error"]
