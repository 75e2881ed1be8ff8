"""The Ray engine: Flower's simulation, in as many processes as there are CPUs."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

# Both count only if they are set before Flower and Ray are imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedsofim.config.schema import Engine
from fedsofim.core.errors import ConfigError
from fedsofim.engines.flower import flower_engine
from fedsofim.engines.local import OnRound
from fedsofim.engines.steady import steady
from fedsofim.federation.client_app import app as client_app
from fedsofim.federation.decoding import shown
from fedsofim.runs.experiment import Experiment, RunState

PATIENCE = 5.0  # seconds that a round may take to hear that the run was ended


class Ended(BaseException):
    """The run was ended, and no round comes to its end."""


def run(experiment: Experiment, state: RunState, on_round: OnRound) -> RunState:
    """Train from `state` to the last round on Ray."""
    engine = experiment.config.engine
    results: list[RunState] = []
    problems: list[ConfigError] = []
    server, ended, over = ServerApp(), Event(), Event()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            give_up_after(ended, grid)
            results.append(flower_engine(grid)(experiment, state, on_round))
        except ConfigError as error:
            problems.append(error)
        except Ended:
            pass
        finally:
            over.set()

    with quiet() as unsaid, steady():
        try:
            run_simulation(
                server_app=server,
                client_app=client_app,
                num_supernodes=nodes_of(engine, experiment.config.partition.clients),
                backend_config=backend_config(engine),
            )
        except RuntimeError as error:  # what Flower makes of whatever happens to Ray
            problems.append(ConfigError(f"engine=ray: Ray has failed ({shown(_cause(error))})"))
        except (KeyboardInterrupt, SystemExit):  # the latter of Ray, while it starts
            ended.set()
            over.wait(PATIENCE)
            raise KeyboardInterrupt from None
    for problem in problems:
        problem.details = "\n".join(unsaid)
        raise problem
    return results[0]


def give_up_after(ended: Event, grid: Grid) -> None:
    """Let whoever waits on this grid wait no longer once the run has been ended.

    Flower runs the server's side in a thread of its own, which Ctrl-C does not reach.
    """

    def heard(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*given: Any, **named: Any) -> Any:
            if ended.is_set():
                raise Ended
            return ask(*given, **named)

        return asked

    for name in ("get_node_ids", "push_messages", "pull_messages"):
        setattr(grid, name, heard(getattr(grid, name)))


def _cause(error: BaseException) -> str:
    """What was at the bottom of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def nodes_of(engine: Engine, clients: int) -> int:
    """How many virtual nodes share the clients: one for each process, if nothing else is said."""
    processes = engine.processes or max(1, int((os.cpu_count() or 1) // engine.cpus))
    return min(engine.nodes or (clients if engine.address else processes), clients)


def backend_config(engine: Engine) -> dict[str, Any]:
    """What Flower tells Ray."""
    init: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    if engine.address:
        init["address"] = engine.address
    elif engine.processes:
        init["num_cpus"] = max(1, round(engine.processes * engine.cpus))
    return {"init_args": init, "client_resources": {"num_cpus": engine.cpus, "num_gpus": 0.0}}


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Leave the screen to the run: of Flower's log, only what tells of trouble in a line.

    Errors, which come with pages of Ray's and Python's, are given to whoever asks.
    """
    logger = logging.getLogger("flwr")
    errors: list[str] = []

    def of_interest(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            errors.append(record.getMessage())
            return False
        return record.levelno >= logging.WARNING and "deprecated" not in record.getMessage().lower()

    logger.addFilter(of_interest)
    try:
        yield errors
    finally:
        logger.removeFilter(of_interest)
