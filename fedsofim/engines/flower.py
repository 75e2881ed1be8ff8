"""The engine over a Flower grid, whatever is behind it: Ray processes or real machines."""

from functools import partial
from typing import Any

from flwr.serverapp import Grid

from fedsofim.core.arrays import Array, flatten, unflatten
from fedsofim.engines import Run
from fedsofim.engines.local import OnRound
from fedsofim.federation.quorum import Quorum
from fedsofim.federation.roster import Roster
from fedsofim.federation.strategy import RuleStrategy
from fedsofim.federation.sum_strategy import SumStrategy
from fedsofim.federation.terms import Terms
from fedsofim.runs.experiment import Experiment, RunState, refresh


def quorum_of(experiment: Experiment) -> Quorum:
    """Who is asked in each round of this run, and whose answers make it."""
    config = experiment.config
    engine, sharing = config.engine, config.sharing
    return Quorum(
        job=config.text,
        clients=config.partition.clients,
        present=config.schedule.present,
        rounds=config.rounds,
        aggregation=config.aggregation,
        malicious_fraction=config.malicious_fraction,
        cost=config.client.disclosure.releases,
        run=experiment.partition.get("run", ""),
        min_clients=engine.min_clients or (sharing.threshold if sharing else None),
        on_missing=engine.on_missing,
        max_repeats=engine.max_repeats,
        wait=engine.wait,
        timeout=engine.timeout,
    )


def flower_engine(grid: Grid, roster: Roster | None = None) -> Run:
    """The engine that trains over `grid`, with the nodes of `roster` if they were met already."""

    def run(experiment: Experiment, state: RunState, on_round: OnRound) -> RunState:
        config, latest = experiment.config, state

        def record(strategy: RuleStrategy, G: Array | None, dropped: list[str]) -> bool:
            nonlocal latest
            kept = not experiment.deployed  # else what clients remember stays with them
            memory = unflatten(state.clients, strategy.memory) if kept else state.clients
            latest = RunState(strategy.state, memory)
            notes = _notes(G, dropped)
            t, most = strategy.state.t, max(strategy.charged.values(), default=0.0)
            # More than the config says if a client, who lost its last release, charged it again.
            if on_round(latest, G, charged=most, **notes):
                return True
            if t <= 0:
                return False
            for i, charged in strategy.charged.items():
                if t < config.rounds and not affordable(experiment, charged, t):
                    strategy.dismiss(i, f"it has charged itself {charged:g} releases")
            return t < config.rounds and not strategy.can_go_on()

        kind: Any = RuleStrategy
        if config.sharing is not None:
            kind = partial(SumStrategy, **_sums(experiment))
        strategy: RuleStrategy = kind(
            config.strategy,
            quorum_of(experiment),
            state=state.server,
            memory={} if experiment.deployed else flatten(state.clients),
            roster=roster,
            on_round=record,
            refresh=partial(refresh, experiment),
            stages=config.stages,
            plan=experiment.plan,
        )
        strategy.start(grid)
        return latest

    return run


def _sums(experiment: Experiment) -> dict[str, Any]:
    """What a strategy must know that is shown sums alone."""
    config = experiment.config
    terms = Terms(config.client, experiment.plan, config.stages, config.sharing)
    return {"terms": terms, "like": experiment.test}


def _notes(G: Array | None, dropped: list[str]) -> dict[str, Any]:
    """What belongs in a round's row besides its measures."""
    skipped: dict[str, Any] = {"skipped": True} if G is None else {}
    return skipped | ({"dropped": dropped} if dropped else {})


def affordable(experiment: Experiment, charged: float, t: int) -> bool:
    """Whether the plan covers another round after the first `t`, for which `charged` was charged.

    It does as long as no client had to charge itself twice for the same round.
    """
    cost = experiment.config.cost
    spent = max(charged, cost(t)) + cost(t + 1) - cost(t)
    return spent <= experiment.plan.releases * (1 + 1e-9)
