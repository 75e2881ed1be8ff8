"""The signals that ask a program to end."""

import signal


def polite() -> list[int]:
    """SIGTERM, and SIGHUP, by which a terminal ends, unless `nohup` has it ignored."""
    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, signal.SIGHUP]
