"""Extends a run: more rounds or another budget, with all that was released still charged."""

from collections.abc import Mapping
from typing import Any

from fedsofim.config.schema import Config, parse
from fedsofim.core.errors import require
from fedsofim.runs.directory import RunDir
from fedsofim.runs.experiment import Experiment, RunState
from fedsofim.runs.record import noise_for_the_rest, terms_of

# What may be changed when a run is continued; all else is as it began.
EXTENDING = ("rounds", "privacy.epsilon", "privacy.noise_multiplier")


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A plain config with new values, by dotted name, of some of `EXTENDING`."""
    new = dict(values)
    for key, value in changes.items():
        may = ", ".join(EXTENDING)
        require(key in EXTENDING, f"{key}: a run goes on as it began; only {may} may be changed")
        group, _, name = key.rpartition(".")
        new |= {group: {**new[group], name: value}} if group else {name: value}
    return new


def extended(
    place: RunDir, experiment: Experiment, state: RunState, changes: Mapping[str, Any]
) -> tuple[Experiment, RunState]:
    """The run with other rounds or another budget from now on, written down as such.

    All that was released stays charged, and the noise of the rounds that remain is chosen from what
    is left of the budget.

    Args:
        place: the run's directory.
        experiment: the run on the terms it had.
        state: after all rounds that anybody has seen.
        changes: new values, by dotted name, of some of `EXTENDING`.
    """
    t, record = state.server.t, state.record
    values = changed(place.config(), changes)
    config = parse(values)
    require(config.rounds >= t, f"rounds={config.rounds}: {t} are done already")
    if terms_of(values) == record.terms:
        return experiment, state
    z = noise_for_the_rest(config, record, t)
    if z != record.noise_multiplier:
        record = record._replace(start=t, noise_multiplier=z)
    state = state._replace(record=record._replace(terms=terms_of(values)))
    told = " ".join(f"{key}={value}" for key, value in changes.items())
    place.checkpoint(state)
    place.write_config(values, f"After round {t} changed to {told}: noise multiplier {z:.6g}.")
    config = with_noise(values, z)
    return experiment._replace(config=config, plan=config.plan()), state


def with_noise(values: Mapping[str, Any], z: float) -> Config:
    """The config with the noise that is in use, where it is not what the budget alone gives."""
    config = parse(values)
    if config.plan().noise_multiplier == z:
        return config
    return parse({**values, "privacy": {**values["privacy"], "noise_multiplier": z}})
