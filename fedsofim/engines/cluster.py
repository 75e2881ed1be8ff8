"""A Ray cluster, here or elsewhere: whether it answers, and work on as many machines as it has."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from fedsofim.core.errors import ConfigError, require

T = TypeVar("T")
# How many workers one piece of work may cost: a machine may be lost, memory that lacks stays so.
RETRIES = 3
# Seconds in which a cluster must answer.
ANSWER = 5.0
# What Ray looks up itself.
NAMES = ("auto", "local")


def check_address(address: str) -> None:
    """Refuse an address where no Ray cluster answers; Ray itself would try for minutes."""
    if address in NAMES:
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    good = bool(host) and bool(colon) and port.isdigit() and 0 < int(port) < 1 << 16
    require(good, f"address={address}: give host:port, ray://host:port or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except OSError as error:
        why = error.strerror or str(error) or "timed out"
        raise ConfigError(
            f"address={address}: nobody answers there ({why}); 'ray start --head' on a cluster's "
            "first machine tells its address"
        ) from None
    require(_speaks(f"{host}:{port}"), f"address={address}: what answers there is no Ray cluster")


def _speaks(place: str) -> bool:
    """Whether somebody there speaks Ray's protocol; with certificates only Ray can tell."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return True
    import grpc  # type: ignore[import-untyped]

    with grpc.insecure_channel(place) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER)
        except grpc.FutureTimeoutError:
            return False
    return True


@contextmanager
def keeping_sigterm() -> Iterator[None]:
    """Keep what SIGTERM does; Ray, when it starts, makes a crash with pages of it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread() and before is not None:
        signal.signal(signal.SIGTERM, before)


class Cluster(NamedTuple):
    """Where independent work is done: on all machines of a Ray cluster.

    Attributes:
        address: of one that runs, as `host:port`; by default one is started here.
        jobs: into how many parts work is divided; by default as many as there are CPUs.
    """

    address: str | None = None
    jobs: int | None = None

    @contextmanager
    def joined(self, variables: Mapping[str, str]) -> Iterator[int]:
        """Join it meanwhile; gives the number of its CPUs.

        Args:
            variables: of the environment, for all of its processes.
        """
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        here: dict[str, Any] = {"num_cpus": self.jobs, "include_dashboard": False}
        where: dict[str, Any] = {"address": self.address} if self.address else here
        quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
        try:
            with keeping_sigterm():
                ray.init(runtime_env={"env_vars": dict(variables)}, **where, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            told = " ".join(str(error).split())[:200]
            raise ConfigError(f"address={self.address or 'here'}: no Ray ({told})") from None
        try:
            there = ray.cluster_resources()  # type: ignore[no-untyped-call]
            yield max(1, int(there.get("CPU", 1)))
        finally:
            ray.shutdown()


def each_on_ray(work: Callable[..., T], tasks: Sequence[Sequence[Any]]) -> Generator[T]:
    """What `work` gives for each task's arguments, as soon as it is there, on a joined cluster.

    A part whose worker, or machine, was lost is done again elsewhere.

    Args:
        work: a function of a module, which all machines have.
        tasks: the arguments of each call.
    """
    import ray

    remote: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(_there)
    pending = [remote.remote(os.getcwd(), work, *task) for task in tasks]
    while pending:
        (done, *_), pending = ray.wait(pending, num_returns=1)
        try:
            yield ray.get(done)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, Exception) else error) from None
        except ray.exceptions.RayError as error:
            told = f"{type(error).__name__}, {1 + RETRIES} times: is there enough memory?"
            raise ConfigError(f"a Ray worker was lost over one part of the work ({told})") from None


def _there(folder: str, work: Callable[..., T], *task: Any) -> T:
    """Do it where it was asked for, so that relative paths mean the same."""
    if os.path.isdir(folder):
        os.chdir(folder)
    return work(*task)
