"""What an owner is charged for, by its own account and on the terms that a run began with.

Nothing here believes the server: neither other clients' noise, nor a weaker notion of neighbours,
nor that a run's terms are what they were.
"""

import math

from fedsofim.core.sums import Adjacency
from fedsofim.privacy.accounting import GaussianEvent
from fedsofim.privacy.book import Account
from fedsofim.privacy.disclosure import Discloses
from fedsofim.privacy.ledger import Ledger
from fedsofim.privacy.mechanism import sensitivity
from fedsofim.privacy.plan import Plan
from fedsofim.privacy.refusals import Refusal, RefusedError
from fedsofim.privacy.sharing import Sharing, Stages, digest_of


def event_of(plan: Plan, count: float, adjacency: Adjacency, honest: int = 1) -> GaussianEvent:
    """What `count` releases do to a record, by the noise that this client alone adds.

    The plan may lean on other clients' noise or on a weaker notion of neighbours; an owner that
    trusts neither counts its own.

    Args:
        plan: the clip and the noise.
        count: of releases.
        adjacency: of the owner's budget.
        honest: the fewest clients, this one among them, whose noise is in what can be seen, by the
            owner's own assumption.
    """
    z = plan.client_noise_multiplier * math.sqrt(honest)
    return GaussianEvent(sensitivity(plan.clip, adjacency), plan.clip * z if z else 0.0, count)


def stage_event(plan: Plan, t: int, adjacency: Adjacency, honest: int = 1) -> GaussianEvent:
    """What stage `t` does to a record, by the noise of so many honest clients; see `event_of`."""
    event = plan.stage_events()[t]
    # Replacing a record is removing one and adding one.
    twice = adjacency == "replace-one" and plan.adjacency == "add-remove"
    factor = math.sqrt(plan.sharers / honest) * (2 if twice else 1)
    return GaussianEvent(event.sensitivity * factor, event.std)


def agreed(
    ledger: Ledger,
    program: Discloses,
    plan: Plan,
    run: str,
    stages: Stages = (),
    sharing: Sharing | None = None,
) -> Account:
    """The account of a run, if its charges are right for this program on these terms."""
    disclosure = program.disclosure
    moved = disclosure.record_moves_others or disclosure.uses_part
    if moved and ledger.budget.adjacency == "add-remove":
        raise RefusedError(
            "the owner's budget is for adding or removing a record, which would change what this "
            "client does with its other records",
            Refusal.UNPROTECTED,
        )
    known = ledger.balance().runs.get(run, Account())
    if known.terms not in ("", digest_of(program, plan, stages, sharing)):
        raise RefusedError(f"run {run} began on other terms; start a new one", Refusal.TERMS)
    return known


def next_event(
    program: Discloses, plan: Plan, made: int, adjacency: Adjacency, honest: int = 1
) -> GaussianEvent:
    """What the next release does to a record, after those that were made in this run."""
    releases = program.disclosure.releases
    return event_of(plan, releases(made + 1) - releases(made), adjacency, honest)


def check_ahead(
    ledger: Ledger,
    program: Discloses,
    plan: Plan,
    *,
    run: str,
    rounds: int,
    stages: Stages = (),
    sharing: Sharing | None = None,
    honest: int = 1,
) -> None:
    """Refuse a run that the budget does not cover to its end: better now than in the middle."""
    known, S = agreed(ledger, program, plan, run, stages, sharing), len(plan.shares)
    releases = program.disclosure.releases
    left = max(0.0, releases(rounds) - releases(min(known.made, rounds)))
    due = [t for t in range(-S, 0) if t not in known.stages]
    events = [stage_event(plan, t, ledger.budget.adjacency, honest) for t in due]
    ledger.check([*events, event_of(plan, left, ledger.budget.adjacency, honest)], run)
