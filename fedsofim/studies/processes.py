"""Independent work in several processes, which never outlive the one that started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from fedsofim.engines.cluster import Cluster

T = TypeVar("T")
# How many processes; by default one for each core. Or on which machines.
Jobs = int | Cluster | None
# For independent work, products on one thread in each process beat shared ones.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def each(work: Callable[..., T], tasks: Sequence[Sequence[Any]], jobs: int) -> Generator[T]:
    """What `work` gives for each task's arguments, as soon as it is there.

    Whoever leaves early - by Ctrl-C, a polite kill, an error, or closing this iterator - ends the
    processes with it, at once.

    Args:
        work: a function of a module.
        tasks: the arguments of each call.
        jobs: how many processes.
    """
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    with _one_thread(), _sigterm_as_interrupt():
        pool = ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_die_with_parent)
        try:
            with _ignoring_interrupts():
                pending: set[Future[T]] = {pool.submit(work, *task) for task in tasks}
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Take SIGTERM for Ctrl-C, so that the processes are ended then, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Let processes that are started now ignore Ctrl-C, which a terminal sends to all of them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_with_parent() -> None:
    """End this process when the one that started it has ended, for whatever reason."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
