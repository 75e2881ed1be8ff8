"""What moves arrays between the server and its clients."""

from collections.abc import Callable
from importlib.util import find_spec

from fedsofim.core.errors import require
from fedsofim.engines.local import OnRound
from fedsofim.engines.local import run as run_local
from fedsofim.runs.experiment import Experiment, RunState

# Trains from a state to the last round, or until `OnRound` says stop.
Run = Callable[[Experiment, RunState, OnRound], RunState]


def run_ray(experiment: Experiment, state: RunState, on_round: OnRound) -> RunState:
    """Train on Flower's Ray simulation, imported only when it is asked for."""
    check("ray", experiment.config.engine.address)
    from fedsofim.engines.ray import run

    return run(experiment, state, on_round)


def check(name: str, address: str | None = None) -> None:
    """Refuse an engine that is not installed, and a cluster that does not answer."""
    if name != "ray":
        return
    require(
        find_spec("ray") is not None,
        "engine=ray: Ray is not installed: pip install 'fedsofim[ray]'",
    )
    if address:
        from fedsofim.engines.cluster import check_address

        check_address(address)


# The third, engine=flower, is what 'flwr run' brings with it.
ENGINES: dict[str, Run] = {"local": run_local, "ray": run_ray}
