"""An owner against a server that chooses its messages: what it must not be talked into."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsofim.clients import Client, Program
from fedsofim.clients.finetune import FineTune
from fedsofim.clients.gradient import Gradient
from fedsofim.clients.pfedsop import PFedSOP
from fedsofim.clients.scaffold import ScaffoldSteps
from fedsofim.clients.steps import LocalSteps
from fedsofim.clients.tree import Tree
from fedsofim.core.errors import ConfigError
from fedsofim.core.sums import Adjacency
from fedsofim.federation.owner import NO_REASON, Owner, Request, Terms
from fedsofim.models.head import examples
from fedsofim.privacy.account import check_ahead
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.privacy.ledger import Budget, Ledger, RefusedError
from fedsofim.privacy.plan import Plan, Privacy
from fedsofim.transforms.stages import Covariance, Mean

N, F, K = 60, 4, 3
THETA = np.zeros((K, F + 1), np.float32)
TREE = Tree(rounds=8, batches=8)
FULL_TREE = Tree(rounds=8)
Make = Callable[..., Owner]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def owner(adjacency: Adjacency = "replace-one", epsilon: float = 10.0) -> Owner:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(N, F)).astype(np.float32), rng.integers(K, size=N)
        budget = Budget(epsilon=epsilon, delta=1e-5, adjacency=adjacency)
        ledger = Ledger(tmp_path / "ledger.jsonl", budget, data="0")
        return Owner(Client(0, examples(x, y, K)), tmp_path, ledger)

    return owner


STAGES = (Mean(share=0.03, radius=10.0), Covariance(share=0.07, radius=10.0))


def plan_of(program: Program, shares: tuple[float, ...] = (), **given: Any) -> Plan:
    privacy = Privacy(**{"epsilon": 10.0, "delta": 1e-5, "clip": 1.0, **given})
    releases = program.disclosure.releases(8)
    return privacy.plan(releases=releases, clients=3, aggregation="uniform", shares=shares)


def staged(**given: Any) -> Terms:
    """The terms of a run with two stages."""
    program = Gradient()
    return Terms(program, plan_of(program, tuple(s.share for s in STAGES), **given), STAGES)


def ask(
    owner: Owner, program: Program, t: int, plan: Plan | None = None, job: str = "job", **sent: Any
) -> Any:
    received = {"theta": THETA, **sent}
    return owner.release(Terms(program, plan or plan_of(program)), received, Request("ab", t, job))


@pytest.mark.parametrize(
    ("program", "other"),
    [
        # In the middle of an epoch nothing is charged, whatever the noise is.
        (TREE, {"epsilon": np.inf, "clip": 1000.0, "noise_multiplier": 0.0}),
        # The noise of a round cancels in the next, which would show the sum under it.
        (FULL_TREE, {"clip": 1e-6}),
        (ScaffoldSteps(lr=0.1, steps=2), {"noise_multiplier": 30.0}),
    ],
)
def test_a_run_keeps_its_terms(make: Make, program: Program, other: dict[str, Any]) -> None:
    owner, sent = make(), {"c": THETA} if "c" in program.needs else {}
    ask(owner, program, 0, **sent)
    before = owner.ledger.path.read_bytes()
    changed = plan_of(program, **other)
    with pytest.raises(RefusedError, match="began on other terms"):
        ask(owner, program, 1, changed, "other job", **sent)
    with pytest.raises(RefusedError, match="began on other terms"):
        check_ahead(owner.ledger, program, changed, run="ab", rounds=8)
    assert owner.ledger.path.read_bytes() == before


def test_another_program_is_other_terms(make: Make) -> None:
    owner = make()
    ask(owner, LocalSteps(lr=0.1, steps=1), 0)
    with pytest.raises(RefusedError, match="began on other terms"):
        ask(owner, LocalSteps(lr=0.2, steps=1), 1)


def test_the_set_up_begins_a_run(make: Make) -> None:
    owner, theta = make(), {"theta": THETA}
    owner.stage(staged(), {}, Request("ab", -2, "job"))
    other = Terms(Gradient(), staged().plan, (STAGES[0], replace(STAGES[1], radius=9.0)))
    for terms in (staged(clip=2.0), other):
        with pytest.raises(RefusedError, match="began on other terms"):
            owner.release(terms, theta, Request("ab", 0, "job"))
        with pytest.raises(RefusedError, match="began on other terms"):
            owner.stage(terms, {"P": np.eye(F + 1, dtype=np.float32)}, Request("ab", -1, "job"))
    owner.release(staged(), theta, Request("ab", 0, "job"))


def test_every_stage_is_charged_once_for_each_question(make: Make) -> None:
    owner, P = make(), np.eye(F + 1, dtype=np.float32)
    first, again = (owner.stage(staged(), {}, Request("ab", -2, "job"))[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    one, same, other = (
        owner.stage(staged(), {"P": sent}, Request("ab", -1, "job"))[0] for sent in (P, P, 2 * P)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    assert [charge.round for charge in owner.ledger.charges()] == [-2, -1, -1]
    costs = [charge.sensitivity / charge.std for charge in owner.ledger.charges()]
    events = staged().plan.stage_events()
    np.testing.assert_allclose(costs, [events[0].mu, events[1].mu, events[1].mu])


def test_a_stage_takes_only_what_it_reads(make: Make) -> None:
    owner, P = make(), np.eye(F + 1, dtype=np.float32)
    for t, sent in (
        (-2, {"P": P}),
        (-1, {"P": P[:-1]}),
        (-1, {"P": np.full_like(P, np.inf)}),
        (-1, {"P": np.stack([P, P])}),
        (-1, {"P": P, "theta": THETA}),
        (-3, {}),
    ):
        with pytest.raises(ConfigError):
            owner.stage(staged(), sent, Request("ab", t, "job"))
    assert not owner.ledger.charges()


def test_a_budget_covers_all_stages_or_none(make: Make) -> None:
    owner, terms = make(epsilon=10.0), staged()
    check_ahead(owner.ledger, *terms[:2], run="ab", rounds=8, stages=STAGES)
    poor = make(epsilon=9.9)
    with pytest.raises(RefusedError):
        check_ahead(poor.ledger, *terms[:2], run="ab", rounds=8, stages=STAGES)


def test_what_is_not_of_the_terms_may_change(make: Make) -> None:
    """A resumed run may wait longer, or write elsewhere."""
    owner = make()
    ask(owner, FULL_TREE, 0)
    ask(owner, FULL_TREE, 1, job="the same, with another time-out")
    assert len(owner.ledger.charges()) == 2


class Free(Gradient):
    """It says that it costs nothing, and adds no noise."""

    @property
    def disclosure(self) -> Disclosure:
        return replace(super().disclosure, releases=lambda rounds: 0)


class Twins(Gradient):
    """It sends two heads under one draw of noise."""

    @property
    def disclosure(self) -> Disclosure:
        return super().disclosure

    def release(
        self, received: Mapping[str, Any], clients: Sequence[Client], *rest: Any
    ) -> tuple[Any, Any]:
        sent, state = super().release(received, clients, *rest)
        return np.stack([sent, sent + 1], axis=1), state


@pytest.mark.parametrize("program", [Free(), Twins()])
def test_what_leaves_is_one_head_that_was_charged(
    make: Make, program: Program, tmp_path: Path
) -> None:
    owner = make()
    for _ in range(2):
        with pytest.raises(RefusedError, match="not one release"):
            ask(owner, program, 0)
    assert not list(tmp_path.glob("run-*"))


STACK = np.zeros((1, 2, K, F + 1), np.float32)
SOP = dict.fromkeys(("lr", "rho", "sharpness"), np.ones((), np.float32))


@pytest.mark.parametrize(
    ("program", "sent", "message"),
    [
        (ScaffoldSteps(lr=0.1, steps=2), {"c": STACK}, "c: should be"),
        (ScaffoldSteps(lr=0.1, steps=2), {}, "c: should be"),
        (LocalSteps(lr=0.1, steps=2), {"mu": STACK[..., :1, :1]}, "mu: should be"),
        (LocalSteps(lr=0.1, steps=2), {"mu": np.zeros(())}, "mu: should be"),
        (LocalSteps(lr=0.1, steps=2), {"mu": np.float32(np.nan)}, "mu: should be"),
        (PFedSOP(lr=0.1, steps=1, tune_lr=0.1, tune_steps=0), {**SOP, "drift": STACK}, "drift: "),
        (Gradient(), {"theta": STACK}, "theta: should be"),
        (Gradient(), {"theta": THETA + np.float32(np.inf)}, "theta: should be"),
        (Gradient(), {"c": THETA}, "c: this client does not take it"),
    ],
)
def test_only_what_one_head_takes_is_taken(
    make: Make, program: Program, sent: dict[str, Any], message: str
) -> None:
    owner = make()
    with pytest.raises(ConfigError, match=message):
        ask(owner, program, 0, **{name: np.asarray(array) for name, array in sent.items()})
    assert not owner.ledger.charges()


@pytest.mark.parametrize(
    "program", [TREE, FineTune(lr=0.1, steps=1, batch_size=20, tune_lr=0.1, tune_steps=0)]
)
def test_a_record_that_moves_others_is_not_added_or_removed(make: Make, program: Program) -> None:
    """Without the first record all others come to another turn, which the clip does not bound."""
    owner = make("add-remove")
    with pytest.raises(RefusedError, match="its other records"):
        check_ahead(owner.ledger, program, plan_of(program), run="ab", rounds=8)
    with pytest.raises(RefusedError, match="its other records"):
        ask(owner, program, 0)
    ask(make(), program, 0)


def test_an_old_memory_is_not_continued(make: Make, tmp_path: Path) -> None:
    """Three leaves of which two are the first would be worth 9, and be charged as 6."""
    owner, file = make(), tmp_path / "run-ab.npz"
    ask(owner, FULL_TREE, 0)
    old = file.read_bytes()
    ask(owner, FULL_TREE, 1)
    file.write_bytes(old)
    with pytest.raises(RefusedError, match="is lost"):
        ask(owner, FULL_TREE, 1, job="again")


def test_a_ledger_that_lost_a_charge_is_not_continued(make: Make) -> None:
    owner = make()
    ask(owner, Gradient(), 0)
    owner.ledger.path.write_bytes(b"")
    with pytest.raises(RefusedError, match="2 lines 2 are missing"):
        ask(owner, Gradient(), 1)


@pytest.mark.parametrize("fault", [ValueError("label 7"), ConfigError("label 7")])
def test_a_fault_in_the_records_is_not_told(
    make: Make,
    fault: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> Any:
        raise fault

    monkeypatch.setattr(Gradient, "release", fail)
    monkeypatch.setattr(Mean, "summed", fail)
    owner = make()
    for question in (
        lambda: owner.stage(staged(), {}, Request("ab", -2, "job")),
        lambda: owner.release(staged(), {"theta": THETA}, Request("ab", 0, "job")),
    ):
        with pytest.raises(ConfigError) as told:
            question()
        assert str(told.value) == NO_REASON
        assert "label 7" in caplog.text
        caplog.clear()
