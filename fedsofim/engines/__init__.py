"""What moves arrays between the server and its clients."""

from collections.abc import Callable

from fedsofim.config import ConfigError
from fedsofim.engines.local import OnRound
from fedsofim.engines.local import run as run_local
from fedsofim.experiment import Experiment, RunState

# Trains from a state to the last round, or until `OnRound` says stop.
Run = Callable[[Experiment, RunState, OnRound], RunState]


def run_ray(experiment: Experiment, state: RunState, on_round: OnRound) -> RunState:
    """Train on Flower's Ray simulation, imported only when it is asked for."""
    from fedsofim.engines.ray import run

    return run(experiment, state, on_round)


def run_flower(experiment: Experiment, state: RunState, on_round: OnRound) -> RunState:
    """Refuse: without `flwr run` there is no grid to send messages over."""
    raise ConfigError(
        "engine=flower: is what 'flwr run' uses; start with flwr run . --run-config "
        "'overrides=\"...\"', continue with flwr run . --run-config 'resume=\"DIR\"', "
        "or choose engine=ray"
    )


ENGINES: dict[str, Run] = {"local": run_local, "ray": run_ray, "flower": run_flower}
