"""Ctrl-C and a polite kill, as a wish to stop after the round that is under way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedsofim.core.signals import polite


class Stop:
    """Whether a stop was requested; a second request stops at once."""

    requested = False

    def request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


# The handlers that nobody has put there.
UNTOUCHED = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Turn Ctrl-C and a polite kill into a stop after the round that is under way.

    What another program listens to stays its own. Flower's ServerApp is told to end when its
    SuperLink has died, and then no round would come to its end.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals are the main thread's
        return
    signals = [s for s in (signal.SIGINT, *polite()) if signal.getsignal(s) in UNTOUCHED]
    previous = {s: signal.signal(s, stop.request) for s in signals}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
