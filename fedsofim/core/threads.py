"""Threads: a run has its own, and every matrix product has one.

BLAS divides a product among its threads, and their number then shows in the last bits; on a busy
machine they wait for each other besides. So a product stays on one thread, and what is independent,
such as clients, goes to threads of ours: results depend neither on their number nor on BLAS's.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")
U = TypeVar("U")

# Whether several threads are at work already, so that what one of them calls must not have more.
_among_others: ContextVar[bool] = ContextVar("_among_others", default=False)

# Whether products have one thread already: to say so again takes longer than a small one.
_limited: ContextVar[bool] = ContextVar("_limited", default=False)


@contextmanager
def one_thread_a_product() -> Iterator[None]:
    """Have BLAS use one thread meanwhile, whatever the environment says; also a decorator."""
    if _limited.get():
        yield
        return
    token = _limited.set(True)
    try:
        with libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        _limited.reset(token)


@cache
def libraries() -> ThreadpoolController:
    """The libraries with threads of their own, NumPy's BLAS among them."""
    import numpy as np  # its BLAS is only found once it is loaded

    assert np
    return ThreadpoolController()


def thread_count() -> int:
    """How many threads a run uses: what the environment asks for, else the CPUs it may use.

    What is itself done by one of several threads has that one.
    """
    if _among_others.get():
        return 1
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        said = os.environ.get(name, "")
        if said.isdecimal() and int(said) > 0:
            return int(said)
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def in_order(work: Callable[[T], U], items: Sequence[T], threads: int | None = None) -> Iterator[U]:
    """What `work` makes of each item, in their order, from several threads.

    Only a few results are held at once, however many there are.

    Args:
        work: a function that may be called from several threads at once.
        items: what it is called with.
        threads: how many, the caller's among them; by default as `thread_count` says.

    >>> list(in_order(abs, [-1, 2, -3], threads=2))
    [1, 2, 3]
    """
    threads = threads or thread_count()
    if min(threads, len(items)) <= 1:
        yield from map(work, items)
        return
    pool, waiting = _pool(threads - 1), deque[tuple[Future[U], T]]()
    try:
        for item in items:
            # NumPy's errstate is that of the context.
            waiting.append((pool.submit(copy_context().run, _one_of_several, work, item), item))
            if len(waiting) > 2 * threads:
                yield _first(waiting, work)
        while waiting:
            yield _first(waiting, work)
    finally:
        for future, _ in waiting:
            future.cancel()


def _first(waiting: deque[tuple[Future[U], T]], work: Callable[[T], U]) -> U:
    """The result of the first; until it is there, the caller does what no thread has begun."""
    for place, (future, item) in enumerate(waiting):
        if waiting[0][0].done():
            break
        if future.cancel():
            waiting[place] = _done(work, item), item
    return waiting.popleft()[0].result()


def _done(work: Callable[[T], U], item: T) -> Future[U]:
    """What `work` makes of the item, or what went wrong, for when it is asked for."""
    future = Future[U]()
    try:
        future.set_result(copy_context().run(_one_of_several, work, item))
    except Exception as error:
        future.set_exception(error)
    return future


def _one_of_several(work: Callable[[T], U], item: T) -> U:
    _among_others.set(True)
    return work(item)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="fedsofim")
