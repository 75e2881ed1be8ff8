"""Ctrl-C and a polite kill, as a wish to stop after the round that is under way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether a stop was requested; a second request stops at once."""

    requested = False

    def request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Turn Ctrl-C and a polite kill into a stop after the round that is under way."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # under 'flwr run' signals are Flower's
        return
    previous = {s: signal.signal(s, stop.request) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
