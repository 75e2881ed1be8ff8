"""What a run claims to have spent is what it released, whatever is done to its files."""

import json
import math
import signal

import dp_accounting
import numpy as np
import pytest
import yaml
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError, Stopped
from fedsofim.privacy.accounting import GaussianEvent, epsilon_of
from fedsofim.privacy.accounting import compose as compose_events
from fedsofim.runs import session
from fedsofim.runs.directory import RunDir
from fedsofim.runs.record import Released, cost, noise_for_the_rest, opened

DELTA = 1e-5


def rows_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def summary_of(path):
    return json.loads((path / "summary.json").read_text())


def theta_of(path):
    with np.load(path / "model.npz", allow_pickle=False) as model:
        return model["theta"]


def edit(path, **changes):
    file = path / "config.yaml"
    values = yaml.safe_load(file.read_text())
    for key, value in changes.items():
        group, _, name = key.replace("__", ".").rpartition(".")
        (values[group] if group else values)[name] = value
    file.write_text(yaml.safe_dump(values, sort_keys=False))


def reference(events, delta=DELTA):
    """Epsilon by the privacy-loss distributions of another library, which never rounds down."""
    accountant = PLDAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
        value_discretization_interval=1e-3,
    )
    for event in events:
        z = event.std / event.sensitivity  # its Gaussian has sensitivity 1 for a replaced record
        gaussian = dp_accounting.GaussianDpEvent(2 * z)
        accountant.compose(dp_accounting.SelfComposedDpEvent(gaussian, int(event.count)))
    return accountant.get_epsilon(delta)


@pytest.fixture
def run(tmp_path, small):
    def start(*overrides, name="run"):
        values = compose([*small, "rounds=7", f"output.dir={tmp_path / name}", *overrides])
        return session.run(values).path

    return start


@pytest.fixture
def cut(run, monkeypatch, tmp_path):
    """A run that was stopped after some of its rounds."""

    def start(at, *overrides, name="cut"):
        measure = session.measure

        def interrupting(experiment, state, G, seconds):
            if state.server.t == at:
                signal.raise_signal(signal.SIGINT)
            return measure(experiment, state, G, seconds)

        with monkeypatch.context() as patch:
            patch.setattr(session, "measure", interrupting)
            with pytest.raises(Stopped):
                run(*overrides, name=name)
        return tmp_path / name

    return start


# The two cases of issue 14, point 9


def test_more_rounds_by_editing_the_config_are_refused(run):
    path = run()
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    edit(path, rounds=14)
    with pytest.raises(ConfigError, match=r"config.yaml: was edited: rounds=14 \(begun with 7\)"):
        session.resume(path)
    before["config.yaml"] = (path / "config.yaml").read_bytes()
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_another_epsilon_in_the_middle_by_editing_the_config_is_refused(cut):
    path = cut(4)
    edit(path, privacy__epsilon=1)
    with pytest.raises(ConfigError, match=r"privacy.epsilon=1 \(begun with 10\)"):
        session.resume(path)
    assert len(rows_of(path)) == 4
    edit(path, privacy__epsilon=10)
    assert summary_of(session.resume(path).path)["epsilon"] == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"privacy__clip": 20.0},
        {"privacy__delta": 1e-3},
        {"privacy__noise_multiplier": 1.0},
        {"seed": 1},
        {"strategy__lr": 0.01},
        {"participation": 0.5},
        {"partition__clients": 5},
    ],
)
def test_every_other_term_is_held_to_as_well(cut, change):
    path = cut(3)
    edit(path, **change)
    (key,) = (name.replace("__", ".") for name in change)
    with pytest.raises(ConfigError, match=f"was edited: {key}="):
        session.resume(path)


def test_what_changes_speed_or_place_may_be_edited(run, cut, npz, tmp_path):
    whole, path = run(name="whole"), cut(3)
    moved = npz.rename(tmp_path / "moved.npz")
    edit(path, dataset__path=str(moved), output__checkpoint_every=1, engine__timeout=5)
    session.resume(path)
    np.testing.assert_array_equal(theta_of(whole), theta_of(path))


# Extending


def test_a_finished_run_has_nothing_left_to_extend_with(run):
    path = run()
    with pytest.raises(ConfigError, match="nothing is left of it after 7 rounds, which spent 10"):
        session.resume(path, {"rounds": 14})
    assert yaml.safe_load((path / "config.yaml").read_text())["rounds"] == 7
    session.resume(path)  # and it is as it was


def test_an_extended_run_tells_both_phases(run):
    path = run()
    first, theta = rows_of(path), theta_of(path)
    session.resume(path, {"rounds": 14, "privacy.epsilon": 12})
    rows, summary = rows_of(path), summary_of(path)
    assert rows[:7] == first
    spent = [row["epsilon"] for row in rows]
    assert spent == sorted(spent)
    assert spent[6] == pytest.approx(10, rel=1e-6)
    assert spent[-1] == summary["epsilon"] == pytest.approx(12, rel=1e-6)
    assert summary["epsilon"] <= 12
    assert (summary["rounds"], summary["releases"]) == (14, 14)
    assert not np.array_equal(theta_of(path), theta)
    page, config = (path / "report.html").read_text(), (path / "config.yaml").read_text()
    assert "rounds 1 to 7: 7 releases" in summary["phases"]
    assert "rounds 8 to 14: 7 releases" in summary["phases"]
    assert summary["phases"] in page
    assert "# After round 7 changed to rounds=14 privacy.epsilon=12" in config
    assert yaml.safe_load(config)["rounds"] == 14
    released = RunDir.open(path).record().released
    assert released.times.tolist() == [7, 7]
    assert summary["noise_std"] == released.std[1] > released.std[0]
    exact = reference(released.events())
    assert summary["epsilon"] == pytest.approx(exact, rel=2e-3)
    assert summary["epsilon"] <= exact


def test_the_noise_of_an_extension_is_really_there(cut, monkeypatch):
    path, measure, draws = cut(4, "strategy=fedgd"), session.measure, []
    before = {}

    def subtracting(experiment, state, G, seconds):
        sizes = np.array([client.data.size for client in experiment.clients])
        if "theta" in before:  # the aggregate, without what the records gave
            theta, clip = before["theta"], experiment.plan.clip
            sums = [c.data.gradient_sum(theta, clip).value for c in experiment.clients]
            clean = np.mean([s / n for s, n in zip(sums, sizes, strict=True)], axis=0)
            draws.append((G - clean) / (np.sqrt((1 / sizes**2).sum()) / len(sizes)))
        before["theta"] = state.server.theta
        return measure(experiment, state, G, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(session, "measure", subtracting)
        session.resume(path, {"rounds": 104, "privacy.epsilon": 30})
    noise = np.concatenate([draw.ravel() for draw in draws])
    first, then = RunDir.open(path).record().released.std
    assert len(noise) == 99 * 18
    assert abs(then / first - 1) > 0.2
    assert kstest(noise / then, "norm").pvalue > 1e-3
    for wrong in (first, 2 / 3 * then, 3 / 2 * then):
        assert kstest(noise / wrong, "norm").pvalue < 1e-6


def test_an_interrupted_run_may_be_extended_within_its_budget(cut):
    path = cut(3)
    session.resume(path, {"rounds": 14})
    summary = summary_of(path)
    assert summary["epsilon"] == pytest.approx(10, rel=1e-6)
    released = RunDir.open(path).record().released
    assert released.times.tolist() == [3, 11]
    assert released.start.tolist() == [0, 3]
    exact = reference(released.events())
    assert summary["epsilon"] == pytest.approx(exact, rel=2e-3)


def test_an_extension_that_is_interrupted_goes_on_with_its_noise(run, monkeypatch):
    whole, path = run(name="whole"), run()
    changes = {"rounds": 14, "privacy.epsilon": 12}
    session.resume(whole, changes)
    measure = session.measure

    def crash(experiment, state, G, seconds):
        if state.server.t == 11:
            raise KeyboardInterrupt
        return measure(experiment, state, G, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(session, "measure", crash)
        with pytest.raises(Stopped):
            session.resume(path, changes)
    session.resume(path)
    np.testing.assert_array_equal(theta_of(whole), theta_of(path))
    assert summary_of(path)["epsilon"] == summary_of(whole)["epsilon"]
    assert summary_of(path)["phases"] == summary_of(whole)["phases"]


def test_an_extension_that_is_cut_short_before_its_config_can_be_repeated(cut, monkeypatch):
    """The state knew the new terms and the config did not: no command went on with the run."""
    path = cut(3)

    def crash(*_):
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "write_config", crash)
        with pytest.raises(RuntimeError):
            session.resume(path, {"rounds": 12})
    with pytest.raises(ConfigError, match=r"rounds=7 \(begun with 12\)"):
        session.resume(path)
    session.resume(path, {"rounds": 12})
    assert len(rows_of(path)) == 12
    assert summary_of(path)["epsilon"] == pytest.approx(10)
    assert yaml.safe_load((path / "config.yaml").read_text())["rounds"] == 12


def test_rounds_after_the_checkpoint_keep_the_noise_they_were_seen_with(run, monkeypatch):
    """Else the same draws at another scale, subtracted, would show the sum without noise."""
    whole = run("output.checkpoint_every=100", name="whole")
    checkpoint, calls = RunDir.checkpoint, []

    def lost(place, state):
        calls.append(state)
        if len(calls) > 1:
            raise OSError("no space left on device")
        checkpoint(place, state)

    measure = session.measure

    def crash(experiment, state, G, seconds):
        if state.server.t == 5:
            raise KeyboardInterrupt
        return measure(experiment, state, G, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "checkpoint", lost)
        patch.setattr(session, "measure", crash)
        with pytest.raises(OSError, match="no space"):
            run("output.checkpoint_every=100", name="cut")
    path = whole.parent / "cut"
    assert len(rows_of(path)) == 4
    session.resume(path, {"rounds": 20})
    released = RunDir.open(path).record().released
    assert released.start.tolist() == [0, 4]
    same = ("accuracy", "loss", "epsilon", "gradient_norm")
    for ours, theirs in zip(rows_of(path)[:4], rows_of(whole), strict=False):
        assert [ours[key] for key in same] == [theirs[key] for key in same]


@pytest.mark.parametrize("strategy", ["sofim", "fedfc"])
def test_rounds_that_are_lost_under_noise_that_cannot_be_repeated_are_charged(
    run, monkeypatch, tmp_path, strategy
):
    """Their first releases were seen, and the second ones are others."""
    few = ("privacy.noise=exact", f"strategy={strategy}")
    whole, saved, at = run(*few, name="whole"), RunDir.checkpoint, []

    def dying(place, state):
        if state.server.t == 3:
            at.append(state)
            raise OSError("no space left on device")
        saved(place, state)

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "checkpoint", dying)
        with pytest.raises(OSError, match="no space"):
            run(*few, name="cut")
    path = tmp_path / "cut"
    assert len(rows_of(path)) == 3
    assert RunDir.open(path).parameters()[1] == 2  # every round is saved
    spent = rows_of(path)[-1]["epsilon"]
    session.resume(path)
    released = RunDir.open(path).record().released
    assert released.rounds == 7
    one = summary_of(whole)["noise_std"]
    extra = GaussianEvent(20.0, one, 1)
    honest = [*RunDir.open(whole).record().released.events(), extra]
    assert summary_of(path)["epsilon"] == pytest.approx(epsilon_of(compose_events(honest), DELTA))
    assert summary_of(path)["epsilon"] > summary_of(whole)["epsilon"]
    rows = rows_of(path)
    assert [row["round"] for row in rows] == list(range(1, 8))
    assert rows[2]["epsilon"] > spent
    assert (np.diff([row["epsilon"] for row in rows]) > 0).all()
    session.resume(path)  # a finished run loses nothing more
    assert summary_of(path)["epsilon"] == rows[-1]["epsilon"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rounds": 2}, "rounds=2: 3 are done already"),
        ({"privacy.epsilon": 0.5}, "privacy.epsilon=0.5: nothing is left of it after 3 rounds"),
        ({"seed": 1}, "seed: a run goes on as it began; only rounds, privacy.epsilon"),
        ({"privacy.clip": 1}, "privacy.clip: a run goes on as it began"),
        ({"rounds": 0}, "rounds=0: must be at least 1"),
        ({"rounds": "many"}, "rounds=many: must be a whole number"),
    ],
)
def test_changes_that_cannot_be_are_refused_and_leave_all_as_it_was(run, cut, changes, told):
    whole, path = run(name="whole"), cut(3)
    before = (path / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=told):
        session.resume(path, changes)
    assert (path / "config.yaml").read_bytes() == before
    session.resume(path)
    np.testing.assert_array_equal(theta_of(whole), theta_of(path))


def test_a_finished_run_cannot_claim_less_afterwards(run):
    path = run()
    with pytest.raises(ConfigError, match="nothing is left of it after 7 rounds, which spent 10"):
        session.resume(path, {"privacy.epsilon": 1})
    session.resume(path, {"privacy.epsilon": 11})  # more than was spent may be allowed for
    assert summary_of(path)["epsilon"] == pytest.approx(10, rel=1e-6)


def test_noise_that_spans_rounds_cannot_be_changed_in_the_middle(cut):
    path = cut(3, "strategy=ftrl", "client.rounds=100")
    with pytest.raises(ConfigError, match="strategy=ftrl spans rounds"):
        session.resume(path, {"rounds": 14})
    session.resume(path)


def test_the_release_before_the_first_round_is_charged_once(cut):
    path = cut(3, "strategy=fedfc")
    session.resume(path, {"rounds": 14})
    released = RunDir.open(path).record().released
    assert released.start.tolist() == [-1, 0, 3]
    assert released.times.tolist() == [1, 3, 11]
    assert summary_of(path)["epsilon"] == pytest.approx(10, rel=1e-6)


def test_with_a_fixed_noise_more_rounds_cost_more(run):
    path = run("privacy.noise_multiplier=5")
    once = summary_of(path)["epsilon"]
    session.resume(path, {"rounds": 14})
    alone = run("privacy.noise_multiplier=5", "rounds=14", name="alone")
    assert once < summary_of(path)["epsilon"] == summary_of(alone)["epsilon"]
    assert "phases" not in summary_of(path)  # the noise is the same throughout


def test_a_run_without_privacy_may_go_on_and_promises_nothing(run):
    path = run("privacy=none")
    session.resume(path, {"rounds": 14})
    alone = run("privacy=none", "rounds=14", name="alone")
    np.testing.assert_array_equal(theta_of(alone), theta_of(path))
    assert summary_of(path)["epsilon"] is None
    clipped = run("privacy.epsilon=inf", name="clipped")
    with pytest.raises(ConfigError, match="nothing is left of it after 7 rounds, which spent inf"):
        session.resume(clipped, {"rounds": 20, "privacy.epsilon": 10})


# The record itself


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0.5, 50)), min_size=1, max_size=4),
    st.floats(0.1, 20),
)
def test_events_are_charged_as_the_other_library_does(phases, sensitivity):
    released, start = Released.blank(), 0
    for count, std in phases:
        for done in range(1, count + 1):
            event = GaussianEvent(sensitivity, sensitivity * std, done)
            released = released.charged(start, event)
        start += count
    assert released.rounds == sum(count for count, _ in phases)
    mu = math.sqrt(sum(count / std**2 for count, std in phases))
    assert released.mu() == pytest.approx(mu, rel=1e-12)


def test_composition_agrees_with_dp_accounting():
    released = Released.blank()
    for start, event in ((0, GaussianEvent(20.0, 83.6474, 70)), (70, GaussianEvent(20.0, 130, 70))):
        released = released.charged(start, event)
    ours, exact = epsilon_of(released.mu(), DELTA), reference(released.events())
    assert ours <= exact == pytest.approx(ours, rel=1e-3)


def test_the_issue_s_own_figures(config_of):
    """70 rounds at epsilon 10, run on to 140 with the same noise: 12.87, not 10 ... by PLD, too."""
    config = config_of("rounds=70")
    plan = config.plan()
    record = opened(config, plan).after(config, plan, 70)
    assert record.epsilon(config, plan) == pytest.approx(10, rel=1e-6)
    more = config_of("rounds=140")
    half = more.plan()  # what an edited config would have used for the other 70
    went_on = record._replace(start=70).after(more, half, 140)
    assert went_on.epsilon(more, half) == pytest.approx(12.87, abs=0.01)
    assert went_on.epsilon(more, half) == pytest.approx(reference(went_on.released.events()), 1e-3)


def test_each_phase_is_charged_for_its_own_busiest_client(config_of):
    config = config_of("participation=0.25", "rounds=40", "partition.clients=20")
    counts = np.zeros((2, 20))
    for t in range(40):
        counts[t // 20][config.schedule.present(t)] += 1
    assert cost(config, 0, 20) == counts[0].max()
    assert cost(config, 20, 40) == counts[1].max()
    assert cost(config, 0, 40) == counts.sum(axis=0).max() == config.cost(40)
    # No client was exposed to more than the sum of what each phase is charged for.
    assert (counts[0] * 4.0 + counts[1]).max() <= 4.0 * counts[0].max() + counts[1].max()


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_the_noise_for_the_rest_uses_the_budget_up_and_no_more(config_of, adjacency):
    config = config_of("rounds=70", f"privacy.adjacency={adjacency}")
    plan = config.plan()
    record = opened(config, plan).after(config, plan, 30)
    z = noise_for_the_rest(config, record, 30)
    assert z == pytest.approx(plan.noise_multiplier, rel=1e-9)  # unchanged terms, unchanged noise
    more = config_of("rounds=200", f"privacy.adjacency={adjacency}")
    z = noise_for_the_rest(more, record, 30)
    fixed = parse(compose([*("rounds=200", f"privacy.adjacency={adjacency}"),
                           f"privacy.noise_multiplier={z!r}"]))  # fmt: skip
    spent = record._replace(start=30).after(fixed, fixed.plan(), 200)
    assert spent.epsilon(fixed, fixed.plan()) <= 10
    assert spent.epsilon(fixed, fixed.plan()) == pytest.approx(10, rel=1e-6)


def test_a_client_that_charged_itself_twice_is_believed(config_of):
    config = config_of("rounds=10")
    plan = config.plan()
    record = opened(config, plan).after(config, plan, 1).after(config, plan, 2, told=5.0)
    assert record.released.rounds == 5
    assert record.after(config, plan, 3).released.rounds == 5
    assert record.after(config, plan, 6).released.rounds == 6
