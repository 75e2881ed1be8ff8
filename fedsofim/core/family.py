"""A process that ends with its parent, whatever it is doing."""

import signal
import sys
from pathlib import Path

# Flower's processes for one task each. They watch their parents, but one that is waiting for a
# connection to a dead one does not hear of it.
TASKS = ("flwr-clientapp", "flwr-serverapp")


def end_with_parent() -> None:
    """Have Linux kill this process when its parent dies, if it is one of Flower's tasks.

    What must last is on disk at any moment, so a kill loses nothing.
    """
    if sys.platform == "linux" and Path(sys.argv[0]).name in TASKS:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
