"""How much a run gives away, beside what it claims: attacks, and the bounds that they prove.

Three tests. `pair`: a worst pair of neighbours, over whole runs of the client's program.
`canaries`: coins guessed from one real run on the config's data. `reachability`: whether single
numbers of a release betray the sum under the noise; of what a device sends, since a simulation's
noise is fast, follows from its seed and protects nobody.

The plan claims to be mu-GDP. The pair and the reachability test bound mu, and tell it as the
epsilon that a Gaussian mechanism of that mu has at the run's delta; `epsilon_any` is the smaller
bound that holds whatever the mechanism is. A test fails if its bound is above the claim. All tests
together are right with the confidence of the audit: each is allowed its part of the error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypedDict

from fedsofim.config.schema import Config
from fedsofim.core.errors import require
from fedsofim.privacy.accounting import compose, epsilon_of
from fedsofim.privacy.audit import (
    Samples,
    epsilon_bound,
    guesses_for,
    held_out,
    mu_bound,
    one_run_bound,
)
from fedsofim.runs.experiment import Experiment, prepare
from fedsofim.studies.audit_canaries import canary_run
from fedsofim.studies.audit_pair import NoiseOf, Stage
from fedsofim.studies.audit_setup import setup

CONFIDENCE = 0.95


class Size(NamedTuple):
    """How much an audit does.

    Attributes:
        sums: noisy sums over all trials of the pair.
        least: trials a side; rounds are left out rather than trials.
        most: trials a side.
        releases: a side, for tests of one release.
        canaries: in the run.
    """

    sums: int
    least: int
    most: int
    releases: int
    canaries: int

    def slower(self) -> "Size":
        """For exact noise, which takes a millisecond and more a sum."""
        return self._replace(sums=self.sums // 8, releases=self.releases // 4)


FULL = Size(sums=240_000, least=300, most=1000, releases=1000, canaries=1000)
QUICK = Size(sums=40_000, least=100, most=400, releases=200, canaries=200)


class Finding(NamedTuple):
    """What one test found.

    Attributes:
        test: its name.
        epsilon_claimed: of what it looked at, at the run's delta.
        epsilon_lower_bound: what that gives away at least.
        epsilon_any: the same, without the assumption that noise is Gaussian.
        confidence: of the bound.
        passed: whether the bound is within the claim.
        detail: what was done, in a few words.
    """

    test: str
    epsilon_claimed: float
    epsilon_lower_bound: float
    epsilon_any: float
    confidence: float
    passed: bool
    detail: str


class AuditRow(TypedDict):
    """An audit as JSON has it; `audit.json` also says of what it is, and how long it took."""

    epsilon_claimed: float
    epsilon_lower_bound: float
    confidence: float
    delta: float
    passed: bool
    tests: list[dict[str, Any]]
    not_applicable: dict[str, str]


class Audit(NamedTuple):
    """What all tests found.

    Attributes:
        epsilon_claimed: by the run.
        delta: of the claim.
        confidence: that no bound is too high.
        findings: one a test.
        skipped: the tests that do not apply, and why.
    """

    epsilon_claimed: float
    delta: float
    confidence: float
    findings: list[Finding]
    skipped: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether every bound is within its claim."""
        return all(finding.passed for finding in self.findings)

    def row(self) -> "AuditRow":
        """All of it, for JSON."""
        bounds = [0.0, *(finding.epsilon_lower_bound for finding in self.findings)]
        return {
            "epsilon_claimed": self.epsilon_claimed,
            "epsilon_lower_bound": max(bounds),
            "confidence": self.confidence,
            "delta": self.delta,
            "passed": self.passed,
            "tests": [finding._asdict() for finding in self.findings],
            "not_applicable": self.skipped,
        }


def audit(
    config: Config,
    *,
    size: Size = FULL,
    device: bool = False,
    noise_of: NoiseOf | None = None,
    on_test: Callable[[str], None] = lambda name: None,
) -> Audit:
    """Attack a config.

    Args:
        config: what claims to be private.
        size: how much to do.
        device: whether to audit what a deployed client sends, rather than a simulation.
        noise_of: where noise comes from, if from elsewhere.
        on_test: called with the name of each test before it begins.
    """
    require(config.private, "audit: this config promises nothing, so there is nothing to refute")
    require(
        not device or config.privacy.trust == "server",
        "audit --device: a device does not share its noise; use privacy.trust=server",
    )
    if device:
        config = replace(config, privacy=replace(config.privacy, noise="exact"))
    plan = config.plan()
    if plan.releases == 0 and not config.stages:
        why = "nothing is sent"
        return Audit(0.0, plan.delta, CONFIDENCE, [], {"pair": why, "canaries": why})
    if config.privacy.noise == "exact":
        size = size.slower()
    stage = Stage(config, config.client, plan, noise_of or config.noise)
    tests, skipped = _tests(stage, size, device=device)
    each = 1 - (1 - CONFIDENCE) / len(tests)
    findings = []
    for name, test in tests.items():
        on_test(name)
        findings.append(test(each)._replace(test=name))
    return Audit(config.epsilon(), plan.delta, CONFIDENCE, findings, skipped)


def _tests(
    stage: Stage, size: Size, *, device: bool
) -> tuple[dict[str, Callable[[float], Finding]], dict[str, str]]:
    """The tests that apply, and for the others why not."""
    config, numbers = stage.config, range(-len(stage.config.stages), 0)
    tests: dict[str, Callable[[float], Finding]] = {}
    skipped = {}
    for t in numbers:
        tests[f"pair, {config.stages[t].name}"] = partial(setup_pair, stage, size, [t])
    if len(numbers) > 1:
        tests["pair, set-up"] = partial(setup_pair, stage, size, numbers)
    if stage.plan.releases == 0:
        why = "nothing is sent in rounds; all that is was tested"
        return tests, {"pair": why, "canaries": why, "reachability": why}
    tests = {"pair": partial(pair, stage, size), **tests}
    if config.privacy.noise == "exact":
        tests["reachability"] = partial(reachability, stage, size)
    else:
        skipped["reachability"] = (
            "a simulation's noise is fast and follows from its seed; --device tests a device's"
        )
    if device:
        skipped["canaries"] = "exact noise takes long over a run; privacy.noise=exact runs them"
    elif config.model.linear:
        tests["canaries"] = lambda confidence: canaries(prepare(config), size, confidence)
    else:
        skipped["canaries"] = f"model={config.model.name}: canaries are made for model=head"
    return tests, skipped


def pair(stage: Stage, size: Size, confidence: float) -> Finding:
    """The worst pair, over as many rounds of a run as there is time for."""
    config = stage.config
    steps = getattr(stage.program, "steps", 1) * stage.plan.sharers
    rounds = config.schedule.busiest(config.rounds)
    rounds = max(1, min(rounds, size.sums // (2 * size.least * steps)))
    trials = min(max(size.sums // (2 * rounds * steps), size.least), size.most)
    claimed = stage.plan.events(config.client.disclosure.releases(rounds))[-1]
    told = f"{rounds} rounds of the client, {trials} times with each of two data sets"
    return _judged(stage, stage.rounds(rounds, trials), claimed.mu, confidence, told)


def setup_pair(stage: Stage, size: Size, numbers: Sequence[int], confidence: float) -> Finding:
    """A bad pair for what is released in these stages before the first round, all together."""
    events, trials = stage.plan.stage_events(), size.sums // (20 * len(numbers))
    what = f"stage {numbers[0]}" if len(numbers) == 1 else f"all {len(numbers)} stages"
    told = f"{what} before the first round, {trials} times with each of two data sets"
    claimed = compose(events[t] for t in numbers)
    return _judged(stage, setup(stage, numbers, trials), claimed, confidence, told)


def reachability(stage: Stage, size: Size, confidence: float) -> Finding:
    """Whether the numbers of one release tell which sum is under the noise."""
    claimed = stage.plan.events(stage.config.client.disclosure.releases(1))[-1]
    told = f"one release, {size.releases} times with each of two data sets, number by number"
    return _judged(stage, stage.consistent(size.releases), claimed.mu, confidence, told)


def _judged(
    stage: Stage, samples: Samples, claimed: float, confidence: float, told: str
) -> Finding:
    """What the trials with two neighbours prove."""
    delta = stage.plan.delta
    counts = held_out(samples, lambda counts: mu_bound(counts, confidence))
    mu = mu_bound(counts, confidence)
    return Finding(
        test="",
        epsilon_claimed=epsilon_of(claimed, delta),
        epsilon_lower_bound=epsilon_of(mu, delta),
        epsilon_any=epsilon_bound(counts, delta, confidence),
        confidence=confidence,
        passed=mu <= claimed,
        detail=f"{told}; on the second half D was named {counts.right} times of {counts.under} "
        f"rightly and {counts.wrong} times of {counts.against} wrongly",
    )


def canaries(experiment: Experiment, size: Size, confidence: float) -> Finding:
    """Coins guessed from one run."""
    plan = experiment.plan
    adversary = canary_run(experiment, size.canaries)
    m = len(adversary.heads)
    guesses = guesses_for(plan.mu(), m, plan.delta, confidence)
    right = adversary.right(guesses)
    epsilon = one_run_bound(m, guesses, right, plan.delta, confidence)
    most = one_run_bound(m, guesses, guesses, plan.delta, confidence)
    claimed = experiment.config.epsilon()
    return Finding(
        test="",
        epsilon_claimed=claimed,
        epsilon_lower_bound=epsilon,
        epsilon_any=epsilon,
        confidence=confidence,
        passed=epsilon <= claimed or math.isclose(epsilon, claimed),
        detail=f"one run with {m} canaries; of the {guesses} surest guesses {right} were right "
        f"(all of them would have shown {most:.2f})",
    )
